// The limits of this machine, measured before anything is compared with them.
#pragma once

#include <cstdint>

#include "base/thread_team.h"

namespace tidemill {

// One for all benchmarks; with as many threads as may run.
ThreadTeam& bench_team();

// Of all threads together. A rate is 0 where the machine lacks the instructions. Measured once, in
// about two seconds, and added to the benchmark's context.
struct Machine {
  double bytes_per_second = 0;       // reading memory far larger than the caches
  double fma_flops_per_second = 0;   // float32, the widest vectors there are
  double bf16_flops_per_second = 0;  // AVX-512 dot products of bf16 pairs
  double amx_flops_per_second = 0;   // AMX tiles of bf16 that stay in their registers
  double barrier_seconds = 0;        // until every thread of the team has come and gone
  static const Machine& get();
};

}  // namespace tidemill
