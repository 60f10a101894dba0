// The fastest that this machine multiplies and adds: what achieved rates are compared with.
#pragma once

#include "base/thread_team.h"
#include "ops/backend.h"

namespace tidemill {

// FLOP per second of all threads of a team together, on operands that stay in registers, with the
// instructions that the backend of an instruction set uses for products of weights: float32
// multiply-adds (kAvx2, kAvx512), dot products of bf16 pairs (kAvx512Bf16), tiles of bf16 (kAmx).
// The best of some tries, a tenth of a second in all. 0 where the machine cannot run them; not for
// kBest.
double peak_flops(ThreadTeam& team, CpuIsa isa);

}  // namespace tidemill
