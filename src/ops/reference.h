// The reference version of every operation: scalar, obvious, and the definition of the numbers.
// Each lies in its operation's folder (reference.cpp). They are parallel over rows or output
// elements, never inside a sum, so the thread count cannot be seen in a result.
#pragma once

#include "base/thread_team.h"
#include "ops/backend.h"

namespace tidemill::reference {

// What every operation needs besides its arguments.
struct Context {
  ThreadTeam& team;
  Rounding rounding;
  ProductOrder order = ProductOrder::kPairLanes;

  float bf16(float value) const;  // rounds, if this mode keeps bf16
};

void gather(const Context&, const GatherArgs&);
void linear(const Context&, const LinearArgs&);
void rms_norm(const Context&, const RmsNormArgs&);
void rope_table(const Context&, const RopeTableArgs&);
void rope(const Context&, const RopeArgs&);
void hc_mix(const Context&, const HcMixArgs&);
void collapse_norm(const Context&, const CollapseNormArgs&);
void expand(const Context&, const ExpandArgs&);
void stream_mean(const Context&, const StreamMeanArgs&);
void store_rows(const Context&, const StoreRowsArgs&);
void scatter_rows(const Context&, const ScatterRowsArgs&);
void round_rows(const Context&, const RoundRowsArgs&);
void select_rows(const Context&, const SelectRowsArgs&);
void repeat_row(const Context&, const RepeatRowArgs&);
void compress_pairs(const Context&, const CompressPairsArgs&);
void index_select(const Context&, const IndexSelectArgs&);
void attend(const Context&, const AttendArgs&);
void route(const Context&, const RouteArgs&);
void experts(const Context&, const ExpertsArgs&);
void engram_gate(const Context&, const EngramGateArgs&);
void draw(const Context&, const DrawArgs&);

// ---- pieces that operations and their tests share

// Columns [begin, end) of row `row` of a matrix, widened.
void widen_row(const Matrix& w, int64_t row, float* out);
float bf16_at(const Bf16Vector& v, int64_t i);
// Q8 of every 32 values of a row, as values; copies when the mode keeps activations as they are.
void quantise_activations(const Context&, const float* x, int64_t n, float* out);
// One RMS-normalised row; out may be x.
void normalise_row(const Context&, const float* x, const Bf16Vector& weight, float eps, float* out);
// Sinkhorn normalisation of an n x n matrix of logits, in place (spec 5).
void sinkhorn(float* c, int64_t n, int64_t iterations, float eps);
// Scores of the visible entries of row t.
void index_scores(const Context&, const IndexSelectArgs&, int64_t t, float* score);
// A cache row to float32 and back.
void unpack_row(const RowFormat& format, const std::byte* row, float* out);
void pack_row(const RowFormat& format, const float* x, std::byte* row);
// bf16(weight * silu(min(g, limit)) * clamp(u, +-limit)); without a weight pass 1 (exact).
float swiglu(const Context&, float g, float u, float limit, float weight);
float sqrt_softplus(float logit);

}  // namespace tidemill::reference
