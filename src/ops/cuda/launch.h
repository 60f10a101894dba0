// Operations on a CUDA device: each in its operation's folder (cuda.cu). They enqueue on a stream
// and return; arguments are as in the backend's table, all data in memory of the device.
//
// Most equal the reference backend bit for bit, except where that calls the host's log1p, exp, cos
// and sin (route, rope_table; draw, which may name more tokens), and of values that are not
// numbers. Those on which speed hangs have two versions: `plain`, one obvious kernel, equal in that
// sense; and one for tensor cores, which adds products in another fixed order (tensor_core.cuh) and
// leaves to `plain` the shapes that no released model has.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/attend/attend.h"
#include "ops/compress/compress.h"
#include "ops/draw/draw.h"
#include "ops/engram/engram.h"
#include "ops/gather/gather.h"
#include "ops/hyper_connection/hyper_connection.h"
#include "ops/index_select/index_select.h"
#include "ops/linear/linear.h"
#include "ops/moe/moe.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "ops/rows/rows.h"

namespace tidemill::cuda {

// Memory of the device that grows to what the largest call needed and is then reused by all: calls
// on one stream do not overlap, but for what kernels do before await_previous() (early_launch.cuh),
// and that touches none of it.
class Scratch {
 public:
  // Growing moves the memory, and is counted in `moves`.
  explicit Scratch(int64_t& moves) : moves_(moves) {}
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // null: the device has no such memory; cudaGetLastError has the error. It cannot grow while the
  // stream is captured: then null too, and a move is counted that makes the capture void.
  void* take(int64_t bytes, cudaStream_t stream);

 private:
  int64_t& moves_;
  void* memory_ = nullptr;
  int64_t bytes_ = 0;
};

// What an operation needs besides its arguments. One thread uses it at a time.
struct Launch {
  cudaStream_t stream = nullptr;
  bool plain = false;        // plain versions for all shapes
  int64_t moves = 0;         // of any scratch memory: captured launches have old addresses
  Scratch quantised{moves};  // activations as a product or attention reads them
  Scratch products{moves};   // results that only the operation itself reads
  Scratch hidden{moves};     // the inner activations of experts
  Scratch lists{moves};      // which tokens go to which expert
  Scratch tiles{moves};      // activations of experts, a tile for some tokens of one
  Scratch sums{moves};       // of segments of a product, which are added up afterwards
};

// Most of each that the kernels have room for.
constexpr int64_t kMostStreams = 4;
constexpr int64_t kMostExperts = 1024;
constexpr int64_t kMostHeadDim = 1024;
constexpr int64_t kMostHidden = 12000;

void gather(Launch&, const GatherArgs&);
void linear(Launch&, const LinearArgs&);
void rms_norm(Launch&, const RmsNormArgs&);
void rope_table(Launch&, const RopeTableArgs&);
void rope(Launch&, const RopeArgs&);
void hc_mix(Launch&, const HcMixArgs&);
void collapse_norm(Launch&, const CollapseNormArgs&);
void expand(Launch&, const ExpandArgs&);
void stream_mean(Launch&, const StreamMeanArgs&);
void store_rows(Launch&, const StoreRowsArgs&);
void scatter_rows(Launch&, const ScatterRowsArgs&);
void round_rows(Launch&, const RoundRowsArgs&);
void select_rows(Launch&, const SelectRowsArgs&);
void repeat_row(Launch&, const RepeatRowArgs&);
void compress_pairs(Launch&, const CompressPairsArgs&);
void index_select(Launch&, const IndexSelectArgs&);
void attend(Launch&, const AttendArgs&);
void route(Launch&, const RouteArgs&);
void experts(Launch&, const ExpertsArgs&);
void engram_gate(Launch&, const EngramGateArgs&);
void draw(Launch&, const DrawArgs&);

namespace plain {
void linear(Launch&, const LinearArgs&);
void hc_mix(Launch&, const HcMixArgs&);
void experts(Launch&, const ExpertsArgs&);
void attend(Launch&, const AttendArgs&);
void index_select(Launch&, const IndexSelectArgs&);

// x, or Q8(x) as values, densely packed.
const float* prepared(Launch&, const Rows& x, bool quantise);
}  // namespace plain

int multiprocessors();

// Whether the stream waits for an event of another one since its last kernel (cuda_lanes.h); asked
// once, before the next.
bool take_event(cudaStream_t stream);

// How many blocks of a kernel the device runs at once; lets it use so much shared memory.
int blocks_at_once(const void* kernel, int threads, int shared_bytes);

inline unsigned blocks_for(int64_t n, int64_t per_block) {
  return static_cast<unsigned>((n + per_block - 1) / per_block);
}

}  // namespace tidemill::cuda
