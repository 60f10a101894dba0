// Host work of prefix reuse: what a request of 32k tokens costs the thread that plans steps.
#include <benchmark/benchmark.h>

#include <random>

#include "ops/backend.h"
#include "state/prefix_cache.h"

namespace tidemill {
namespace {

// The released windows and two small caches: bytes of blocks do not matter here.
StateLayout bench_layout() {
  StateLayout layout;
  layout.window = {RowKind::kQ8, 512};
  layout.entry = layout.key = {RowKind::kF32, 1};
  layout.sources = {{.ratio = 1, .rows_per_block = kBlockTokens, .key_offset = 512}};
  layout.block_bytes = 1024;
  layout.window_tokens = 128;
  layout.rollback = 6;
  layout.reach = 128;
  layout.ring_rows = 256;
  layout.pending_rows = 8;
  layout.saved_layers = 20;
  for (int64_t i = 0; i < 43; ++i) {
    (i < 40 ? layout.ring_offset : layout.draft_ring_offset).push_back(layout.slot_bytes);
    layout.slot_bytes += layout.ring_rows * layout.window.bytes();
  }
  return layout;
}

struct Bench {
  explicit Bench(int64_t tokens)
      : team(1),
        backend(make_reference_backend(team)),
        pool(*StatePool::create(*backend, bench_layout(), 2, 2048)),
        cache(pool, {}),
        sequence(*pool.acquire()),
        ids(static_cast<size_t>(tokens)) {
    std::mt19937 random(1);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 129280);
    (void)pool.reserve(sequence, tokens);
    sequence.tokens = ids;
  }
  ThreadTeam team;
  std::unique_ptr<Backend> backend;
  StatePool pool;
  PrefixCache cache;
  Sequence sequence;
  std::vector<int32_t> ids;
  KeyChain chain{{.weights = "bench"}};
};

void BM_publish(benchmark::State& state) {
  Bench bench(state.range(0));
  for (auto _ : state) {
    state.PauseTiming();
    bench.pool.release(bench.sequence);
    bench.cache.clear();
    bench.sequence = *bench.pool.acquire();
    (void)bench.pool.reserve(bench.sequence, state.range(0));
    bench.sequence.tokens = bench.ids;
    state.ResumeTiming();
    benchmark::DoNotOptimize(bench.cache.publish(bench.sequence, state.range(0), bench.chain));
  }
}
BENCHMARK(BM_publish)->Arg(128)->Arg(32768)->Unit(benchmark::kMicrosecond);

void BM_lookup(benchmark::State& state) {
  Bench bench(state.range(0));
  bench.cache.publish(bench.sequence, state.range(0), bench.chain);
  (void)bench.cache.save_windows(bench.sequence, state.range(0), bench.chain);
  bench.ids.push_back(1);
  int64_t hit = 0;
  for (auto _ : state) {
    hit = bench.cache.lookup({bench.ids, {}}, bench.chain).length;
  }
  state.counters["hit"] = static_cast<double>(hit);
}
BENCHMARK(BM_lookup)->Arg(128)->Arg(32768)->Unit(benchmark::kMicrosecond);

void BM_save_windows(benchmark::State& state) {
  Bench bench(256);
  bench.cache.publish(bench.sequence, 256, bench.chain);
  WindowSnapshots windows(bench.pool.layout(), {});
  for (auto _ : state) {
    (void)windows.save(bench.pool, bench.sequence, 256, {}, true, Clock::now());
    windows.clear();
  }
  state.SetBytesProcessed(state.iterations() * windows.snapshot_bytes(256, true));
}
BENCHMARK(BM_save_windows)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tidemill
