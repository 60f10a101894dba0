// What a measurement ran on, and the fastest that the machine's memory lets a decode step be.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/result.h"

namespace tidemill::cli {

struct Machine {
  std::string cpu;  // model name
  std::string isa;  // amx, avx512bf16, avx512, avx2 or scalar: what the backend's kernels use
  int cpus = 0;     // that this process may use
  int threads = 0;
  double load = 0;  // of the last minute, all processes; above `cpus`: others were in the way
};
Machine this_machine(std::string_view backend, int threads);

// "model name" of the text of /proc/cpuinfo; "unknown" without.
std::string cpu_model(std::string_view cpuinfo);

// Bytes per second that `threads` threads together read from memory: the best of some passes over
// a buffer larger than most caches. Takes about a second.
double measure_read_bandwidth(int threads);

// Weights that a forward pass has to read. Those of the drafter are not among them, so with drafts
// the floor below is lower than it could be.
struct WeightTraffic {
  int64_t once_bytes = 0;    // by every pass, whatever its rows
  int64_t row_bytes = 0;     // gathered for each row: embedding, Engram
  int64_t expert_bytes = 0;  // all routed experts
  double expert_share = 0;   // of them, that one row chooses

  // Routing is taken as uniform: `rows` rows together touch 1 - (1 - share)^rows of the experts,
  // and an expert is read once a pass.
  double bytes(double rows) const;
};
// alias_bytes: LoadOptions'. Errors: those of Model::load.
Result<WeightTraffic> weight_traffic(const std::filesystem::path& model, int64_t alias_bytes = 0);

}  // namespace tidemill::cli
