// What a measurement ran on, and the fastest that the machine's memory lets a decode step be.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "model/model.h"

namespace tidemill::cli {

struct Machine {
  std::string cpu;  // model name
  // amx, avx512bf16, avx512, avx2 or scalar: what the backend's kernels use; or its device's name.
  std::string isa;
  int cpus = 0;  // that this process may use
  int threads = 0;
  double load = 0;  // of the last minute, all processes; above `cpus`: others were in the way
};
Machine this_machine(std::string_view backend, int threads);

// "model name" of the text of /proc/cpuinfo; "unknown" without.
std::string cpu_model(std::string_view cpuinfo);

// Bytes per second that `threads` threads together read from memory, or the backend's device from
// its own: the best of some passes over a buffer larger than most caches. Takes about a second.
double measure_read_bandwidth(std::string_view backend, int threads);

// FLOP per second that `threads` threads together reach with the instructions of the backend's
// products, operands in registers; the nominal rate of a device; 0 for a backend without vectors.
// Takes a tenth of a second.
double measure_peak_flops(std::string_view backend, int threads);

// Multiplications and additions by weights in prefill. Attention's products with cached rows, which
// depend on the context, norms and sums are not counted: a floor made of this is too low by them.
struct PrefillWork {
  int64_t token_flops = 0;   // of every token
  int64_t prompt_flops = 0;  // the output head, of a prompt's last token

  double flops(int64_t tokens) const {
    return static_cast<double>(tokens) * static_cast<double>(token_flops) +
           static_cast<double>(prompt_flops);
  }
};
PrefillWork prefill_work(const Model& model);

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
// Errors: those of StateLayout::build.
Result<WeightTraffic> weight_traffic(const Model& model);

}  // namespace tidemill::cli
