// Everything that needs a model: engines opened one after the other, cells measured on each.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/bench/machine.h"
#include "cli/bench/options.h"
#include "cli/bench/report.h"

namespace tidemill::cli {

// Cells that one engine measures: engines differ in what only Options can say.
struct CellGroup {
  std::string drafts = "off";
  int64_t chunk = 0;
  int64_t sequences = 1;
  int64_t context = 0;  // 0: the model's limit
  std::vector<CellShape> cells;
};

// What plan_groups has to know of a model before it is loaded.
struct ModelLimits {
  int64_t context = 0;
  int64_t max_drafts = 0;
};

// Order: drafts (or chunks) outside, loads inside.
Result<std::vector<CellGroup>> plan_groups(const BenchOptions& options, const ModelLimits& limits);

struct SessionResult {
  Machine machine;
  std::string model;
  double read_bytes_per_second = 0;  // 0: not measured
  double peak_flops_per_second = 0;  // the same
  int64_t token_flops = 0;           // PrefillWork's
  std::vector<MeasuredCell> cells;
  bool interrupted = false;
  Status error;  // what ended the session early; `cells` are those before it
};

// Measures all groups. `record` gets each line of the records as it is made; its error ends the
// session. `cancel` is polled. Error: nothing was measured.
Result<SessionResult> run_session(const BenchOptions& options, const std::atomic<bool>& cancel,
                                  const std::function<Status(const Json&)>& record);

}  // namespace tidemill::cli
