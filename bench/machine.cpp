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

#include "ops/peak_rate.h"

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

#if defined(__x86_64__)
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
  if (cpu_supports(CpuIsa::kAvx2)) m.bytes_per_second = read_rate();
  m.fma_flops_per_second =
      peak_flops(bench_team(), cpu_supports(CpuIsa::kAvx512) ? CpuIsa::kAvx512 : CpuIsa::kAvx2);
  m.bf16_flops_per_second = peak_flops(bench_team(), CpuIsa::kAvx512Bf16);
  m.amx_flops_per_second = peak_flops(bench_team(), CpuIsa::kAmx);
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
