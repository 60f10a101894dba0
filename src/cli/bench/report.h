// Measured cells as tables for people and as JSON records for programs. docs/benchmarking.md
// describes the fields.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/bench/cell.h"
#include "cli/bench/convert.h"
#include "cli/bench/draft.h"
#include "cli/bench/machine.h"
#include "cli/bench/pareto.h"
#include "text/json.h"

namespace tidemill::cli {

// What a decode step, or the prefill of a prompt, costs at least on this machine.
struct Floor {
  WeightTraffic traffic;
  double bytes_per_second = 0;
  PrefillWork prefill;
  double flops_per_second = 0;  // 0: not known, and prefill has no floor

  double step_ms(const CellSummary& summary, int64_t concurrency) const;
  double prompt_ms(int64_t tokens) const { return 1000 * prefill.flops(tokens) / flops_per_second; }
};

struct MeasuredCell {
  CellShape shape;
  CellSummary summary;
  std::optional<double> floor_ms;  // kDecode: of a step; kPrefill: of a prompt

  // The floor over what was measured; 0 if nothing was.
  double of_floor() const;
};

Json to_json(const Machine& machine);
// `gaps`: every time between two bursts instead of their percentiles.
Json request_json(const RequestRecord& record, const CellShape& shape, size_t cell, int64_t run,
                  bool gaps);
Json cell_json(const MeasuredCell& measured, size_t cell);
Json draft_json(const DraftReport& report, const DraftComparison& comparison);
Json convert_json(std::span<const ConvertedCell> cells, double acceptance);

// One table for each kind, and one of draft modes against requests in flight where several modes
// were measured.
std::string cell_tables(std::span<const MeasuredCell> cells);
std::string draft_tables(const DraftReport& report, const DraftComparison& comparison);
std::string convert_table(std::span<const ConvertedCell> cells, double acceptance);

// Of kWorkload and kDecode in a closed loop. Cells without a rate are left out.
std::vector<ParetoPoint> pareto_points(std::span<const MeasuredCell> cells);
std::vector<ParetoPoint> pareto_points(const DraftReport& report,
                                       const DraftComparison& comparison);

}  // namespace tidemill::cli
