#include "ops/peak_rate.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>

#include "base/clock.h"

namespace tidemill {
namespace {

// 12 chains hide the latency of any current core; with different values, or the compiler makes them
// one.
constexpr int64_t kRounds = 2'000'000;
constexpr int64_t kChains = 12;
constexpr int64_t kTileRounds = 200'000;

#if defined(__x86_64__)
// The compiler cannot know that nobody reads it.
template <typename Chain>
void keep(Chain& chain) {
  asm volatile("" : : "r"(&chain) : "memory");
}

__attribute__((target("avx512f"))) void fma_rounds_avx512() {
  __m512 chain[kChains];
  for (int i = 0; i < kChains; ++i) chain[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 factor = _mm512_set1_ps(0.999f);
  for (int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (__m512& c : chain) c = _mm512_fmadd_ps(c, factor, factor);
  }
  keep(chain);
}
__attribute__((target("avx2,fma"))) void fma_rounds_avx2() {
  __m256 chain[kChains];
  for (int i = 0; i < kChains; ++i) chain[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 factor = _mm256_set1_ps(0.999f);
  for (int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (__m256& c : chain) c = _mm256_fmadd_ps(c, factor, factor);
  }
  keep(chain);
}
__attribute__((target("avx512f,avx512bf16"))) void bf16_rounds() {
  __m512 chain[kChains];
  for (int i = 0; i < kChains; ++i) chain[i] = _mm512_set1_ps(static_cast<float>(i));
  const auto factor = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3F7F));
  for (int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (__m512& c : chain) c = _mm512_dpbf16_ps(c, factor, factor);
  }
  keep(chain);
}
// Four tiles of sums from two and two of factors.
void amx_rounds() {
  alignas(64) uint16_t factors[16 * 32];
  std::fill(std::begin(factors), std::end(factors), uint16_t{0x3F7F});
  struct alignas(64) {
    uint8_t palette = 1;
    uint8_t unused[15] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } shape;
  asm volatile(
      "ldtilecfg %0\n\t"
      "tileloadd (%1,%2,1), %%tmm4\n\ttileloadd (%1,%2,1), %%tmm5\n\t"
      "tileloadd (%1,%2,1), %%tmm6\n\ttileloadd (%1,%2,1), %%tmm7"
      :
      : "m"(shape), "r"(factors), "r"(int64_t{64})
      : "memory");
  for (int64_t i = 0; i < kTileRounds; ++i) {
    asm volatile(
        "tdpbf16ps %tmm6, %tmm4, %tmm0\n\ttdpbf16ps %tmm7, %tmm4, %tmm1\n\t"
        "tdpbf16ps %tmm6, %tmm5, %tmm2\n\ttdpbf16ps %tmm7, %tmm5, %tmm3");
  }
  asm volatile("tilerelease");
}
#else
void fma_rounds_avx512() {}
void fma_rounds_avx2() {}
void bf16_rounds() {}
void amx_rounds() {}
#endif

struct Rounds {
  void (*run)() = nullptr;
  int64_t flops = 0;
};
Rounds rounds_of(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kAvx2:
      return {fma_rounds_avx2, 16 * kChains * kRounds};
    case CpuIsa::kAvx512:
      return {fma_rounds_avx512, 32 * kChains * kRounds};
    case CpuIsa::kAvx512Bf16:
      return {bf16_rounds, 64 * kChains * kRounds};
    case CpuIsa::kAmx:
      return {amx_rounds, 4 * 16 * 16 * 32 * 2 * kTileRounds};
    case CpuIsa::kBest:
      break;
  }
  return {};
}

}  // namespace

double peak_flops(ThreadTeam& team, CpuIsa isa) {
  constexpr int kTries = 9;
  const Rounds rounds = rounds_of(isa);
  if (rounds.run == nullptr || !cpu_supports(isa)) return 0;
  double best = INFINITY;
  for (int i = 0; i < kTries; ++i) {
    const Clock::time_point begin = Clock::now();
    // Everybody's rounds: a thread that comes too late leaves its part to the others.
    std::atomic<int> next = 0;
    team.run([&](int, int size) {
      while (next.fetch_add(1) < size) rounds.run();
    });
    best = std::min(best, seconds_since(begin));
  }
  return static_cast<double>(rounds.flops) * team.size() / best;
}

}  // namespace tidemill
