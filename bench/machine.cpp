#include "machine.h"

#include <benchmark/benchmark.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "ops/backend.h"

namespace tidemill {
namespace {

template <typename Body>
double best_seconds(const Body& body) {
  double best = 1e9;
  for (int i = 0; i < 9; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    best = std::min(best, time.count());
  }
  return best;
}

// 12 chains hide the latency of any current core; with different values, or the compiler makes them
// one.
constexpr int64_t kRounds = 2'000'000;
constexpr int64_t kChains = 12;
constexpr int64_t kTileRounds = 200'000;

#if defined(__x86_64__)
__attribute__((target("avx512f"))) void fma_rounds_avx512() {
  __m512 chain[kChains];
  for (int i = 0; i < kChains; ++i) chain[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 factor = _mm512_set1_ps(0.999f);
  for (int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (__m512& c : chain) c = _mm512_fmadd_ps(c, factor, factor);
  }
  benchmark::DoNotOptimize(chain);
}
__attribute__((target("avx2,fma"))) void fma_rounds_avx2() {
  __m256 chain[kChains];
  for (int i = 0; i < kChains; ++i) chain[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 factor = _mm256_set1_ps(0.999f);
  for (int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (__m256& c : chain) c = _mm256_fmadd_ps(c, factor, factor);
  }
  benchmark::DoNotOptimize(chain);
}
__attribute__((target("avx512f,avx512bf16"))) void bf16_rounds() {
  __m512 chain[kChains];
  for (int i = 0; i < kChains; ++i) chain[i] = _mm512_set1_ps(static_cast<float>(i));
  const auto factor = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3F7F));
  for (int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (__m512& c : chain) c = _mm512_dpbf16_ps(c, factor, factor);
  }
  benchmark::DoNotOptimize(chain);
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
// Vector loads from one place and from several at once: which is faster depends on the machine.
__attribute__((target("avx2"))) void read_streams(const std::byte* begin, int64_t bytes,
                                                  int64_t streams) {
  const int64_t each = bytes / streams / 128 * 128;
  __m256i sum[4] = {};
  for (int64_t i = 0; i < each; i += 128) {
    for (int64_t s = 0; s < streams; ++s) {
      const auto* p = reinterpret_cast<const __m256i*>(begin + s * each + i);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) sum[j] = _mm256_add_epi64(sum[j], _mm256_loadu_si256(p + j));
    }
  }
  benchmark::DoNotOptimize(sum);
}
#else
void fma_rounds_avx512() {}
void fma_rounds_avx2() {}
void bf16_rounds() {}
void amx_rounds() {}
void read_streams(const std::byte* begin, int64_t bytes, int64_t) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < bytes; i += 8) sum += std::to_integer<uint64_t>(begin[i]);
  benchmark::DoNotOptimize(sum);
}
#endif

double read_rate() {
  constexpr int64_t kBytes = int64_t{512} << 20;
  const std::vector<std::byte> memory(kBytes, std::byte{1});
  double best = 1e9;
  for (const int64_t streams : {1, 4, 8}) {
    best = std::min(best, best_seconds([&] {
                      bench_team().run([&](int rank, int size) {
                        const int64_t share = kBytes / size / 4096 * 4096;
                        read_streams(memory.data() + rank * share, share, streams);
                      });
                    }));
  }
  return static_cast<double>(kBytes) / best;
}

// `flops` of one thread.
double flop_rate(double flops, void (*rounds)()) {
  flops *= bench_team().size();
  return flops / best_seconds([&] { bench_team().run([&](int, int) { rounds(); }); });
}

// Rank 0 waits until everybody has come: a run by itself waits for nobody.
double barrier_seconds() {
  constexpr int kRuns = 2000;
  return best_seconds([] {
           for (int i = 0; i < kRuns; ++i) {
             std::atomic<int> here = 0;
             bench_team().run([&](int rank, int size) {
               here.fetch_add(1);
               while (rank == 0 && here.load() < size) continue;
             });
           }
         }) /
         kRuns;
}

Machine measure() {
  Machine m;
  if (cpu_supports(CpuIsa::kAvx2)) {
    m.bytes_per_second = read_rate();
    m.fma_flops_per_second = cpu_supports(CpuIsa::kAvx512)
                                 ? flop_rate(32 * kChains * kRounds, fma_rounds_avx512)
                                 : flop_rate(16 * kChains * kRounds, fma_rounds_avx2);
  }
  if (cpu_supports(CpuIsa::kAvx512Bf16)) {
    m.bf16_flops_per_second = flop_rate(64 * kChains * kRounds, bf16_rounds);
  }
  if (cpu_supports(CpuIsa::kAmx)) {
    m.amx_flops_per_second = flop_rate(4 * 16 * 16 * 32 * 2 * kTileRounds, amx_rounds);
  }
  m.barrier_seconds = barrier_seconds();
  const auto note = [](const char* name, double value) {
    benchmark::AddCustomContext(name, std::to_string(value));
  };
  note("read_GB_per_s", m.bytes_per_second / 1e9);
  note("fma_GFLOP_per_s", m.fma_flops_per_second / 1e9);
  note("bf16_GFLOP_per_s", m.bf16_flops_per_second / 1e9);
  note("amx_GFLOP_per_s", m.amx_flops_per_second / 1e9);
  note("barrier_us", m.barrier_seconds * 1e6);
  note("threads", bench_team().size());
  return m;
}

}  // namespace

ThreadTeam& bench_team() {
  static ThreadTeam instance(ThreadTeam::available_threads());
  return instance;
}

const Machine& Machine::get() {
  static const Machine measured = measure();
  return measured;
}

}  // namespace tidemill
