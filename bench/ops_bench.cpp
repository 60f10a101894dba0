// Speed of single operations at the shapes of the bundled and of the released model, on every
// backend, next to the floor that this machine sets: the bytes that must be read over its read
// bandwidth or the operations over its arithmetic rate, whichever takes longer. The rates are
// measured by this program (machine.h); products of weights count against the bf16 or AMX rate
// where a backend uses it. of_floor = floor / time; 1 is perfect, more means served from a cache.
//
// Weights take turns so that they come from memory, as in a model of many layers.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "machine.h"
#include "ops/test_inputs.h"

namespace tidemill {
namespace {

// ---- work and floors

struct Work {
  double bytes = 0;
  double flops = 0;
  bool weights = false;  // products of weights
};

void report(benchmark::State& state, const Work& work, double Machine::*products) {
  const Machine& machine = Machine::get();
  const double rate = work.weights ? machine.*products : machine.fma_flops_per_second;
  const double floor = std::max(work.bytes / machine.bytes_per_second, work.flops / rate);
  const auto runs = static_cast<double>(state.iterations());
  using benchmark::Counter;
  state.counters["GB/s"] = Counter(work.bytes * runs / 1e9, Counter::kIsRate);
  state.counters["GFLOP/s"] = Counter(work.flops * runs / 1e9, Counter::kIsRate);
  state.counters["of_floor"] = Counter(floor * runs, Counter::kIsRate);
}

// ---- weights

constexpr int64_t kBeyondCaches = 96 << 20;  // bytes of weights that take turns

OwnedMatrix random_matrix(WeightFormat format, int64_t rows, int64_t cols) {
  OwnedMatrix m;
  m.view.format = format;
  m.view.rows = rows;
  m.view.cols = cols;
  m.data.resize(static_cast<size_t>(rows * m.view.row_bytes()));
  static uint64_t state = 88172645463325252u;
  for (uint8_t& byte : m.data) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    // FP8 codes of 2^-3 to 2, and subnormal as often as among normally distributed weights
    byte = static_cast<uint8_t>((state & 0x9F) | ((state >> 20) % 8192 == 0 ? 0 : 0x20));
  }
  if (format == WeightFormat::kBf16) {  // magnitudes from 2^-17 to 2^-2
    for (size_t i = 1; i < m.data.size(); i += 2) m.data[i] = (m.data[i] & 0x87) | 0x38;
  }
  const int64_t scale_rows = format == WeightFormat::kFp8Block ? (rows + 31) / 32 : rows;
  m.scales.assign(static_cast<size_t>(scale_rows * m.view.scale_columns()), 115);
  m.view.data = m.data.data();
  m.view.scales = m.scales.data();
  return m;
}

int64_t bytes_of(const Matrix& m) { return m.rows * m.row_bytes(); }

// ---- benchmarks; each closure owns its inputs

using Run = std::function<Work(Backend&)>;  // one call, what it had to do
using Setup = std::function<Run()>;

void add(const std::string& name, const Setup& setup) {
  struct Named {
    const char* name;
    std::function<std::unique_ptr<Backend>()> make;
    double Machine::*products = &Machine::fma_flops_per_second;  // the rate of its kernels
  };
  std::vector<Named> backends;
  if (name.ends_with("/1")) {  // more tokens would take minutes
    backends.push_back({"reference", [] { return make_reference_backend(bench_team()); }});
  }
  for (const auto& [isa_name, isa, products] :
       {std::tuple{"avx2", CpuIsa::kAvx2, &Machine::fma_flops_per_second},
        {"avx512", CpuIsa::kAvx512, &Machine::fma_flops_per_second},
        {"avx512bf16", CpuIsa::kAvx512Bf16, &Machine::bf16_flops_per_second},
        {"amx", CpuIsa::kAmx, &Machine::amx_flops_per_second}}) {
    if (!cpu_supports(isa)) continue;
    backends.push_back(
        {isa_name, [isa = isa] { return *make_cpu_backend(bench_team(), isa); }, products});
  }
  for (const Named& backend : backends) {
    benchmark::RegisterBenchmark((name + "/" + backend.name).c_str(),
                                 [setup, backend](benchmark::State& state) {
                                   Machine::get();
                                   const std::unique_ptr<Backend> b = backend.make();
                                   const Run run = setup();
                                   Work work;
                                   for (auto _ : state) work = run(*b);
                                   report(state, work, backend.products);
                                 })
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
  }
}

struct LinearShape {
  const char* name;
  WeightFormat format;
  int64_t rows, cols, groups;
  bool quantise;
};

Run linear(const LinearShape& s, int64_t tokens) {
  struct State {
    std::vector<OwnedMatrix> weights;
    OwnedRows x, y;
    size_t turn = 0;
  };
  TestInputs in(1);
  auto state = std::make_shared<State>(
      State{{}, in.activations(tokens, s.cols * s.groups), OwnedRows(tokens, s.rows)});
  int64_t bytes = 0;
  do {
    state->weights.push_back(random_matrix(s.format, s.rows, s.cols));
    bytes += bytes_of(state->weights.back().view);
  } while (bytes < kBeyondCaches);
  return [state, s, tokens](Backend& backend) {
    const Matrix& w = state->weights[state->turn++ % state->weights.size()].view;
    LinearArgs args;
    args.w = &w;
    args.x = state->x.view();
    args.y = state->y.view();
    args.groups = s.groups;
    args.quantise_input = s.quantise;
    backend.linear(args);
    return Work{static_cast<double>(bytes_of(w)),
                2.0 * static_cast<double>(tokens * w.rows * w.cols), true};
  };
}

struct MoeShape {
  const char* name;
  int64_t experts, topk, hidden, inter;
};

Run experts(const MoeShape& s, int64_t tokens) {
  struct State {
    std::vector<OwnedMatrix> matrices;
    std::vector<std::vector<ExpertWeights>> layers;  // the shared expert last
    OwnedRows x, y;
    std::vector<int32_t> ids;
    std::vector<float> weights;
    size_t turn = 0;
  };
  TestInputs in(2);
  auto state = std::make_shared<State>(
      State{{}, {}, in.activations(tokens, s.hidden), OwnedRows(tokens, s.hidden)});
  int64_t bytes = 0;
  do {
    std::vector<ExpertWeights>& layer = state->layers.emplace_back();
    for (int64_t e = 0; e <= s.experts; ++e) {
      const WeightFormat format = e < s.experts ? WeightFormat::kFp4Row : WeightFormat::kFp8Block;
      Matrix view[3];
      for (int i = 0; i < 3; ++i) {
        state->matrices.push_back(i < 2 ? random_matrix(format, s.inter, s.hidden)
                                        : random_matrix(format, s.hidden, s.inter));
        view[i] = state->matrices.back().view;  // moving a vector keeps its memory
        bytes += bytes_of(view[i]);
      }
      layer.push_back({view[0], view[1], view[2]});
    }
  } while (bytes < kBeyondCaches);
  std::vector<bool> touched(static_cast<size_t>(s.experts));
  for (int64_t t = 0; t < tokens; ++t) {
    std::vector<int32_t> chosen;
    while (static_cast<int64_t>(chosen.size()) < s.topk) {
      const auto e = static_cast<int32_t>(in.below(s.experts));
      if (std::find(chosen.begin(), chosen.end(), e) == chosen.end()) chosen.push_back(e);
    }
    for (const int32_t e : chosen) {
      touched[static_cast<size_t>(e)] = true;
      state->ids.push_back(e);
      state->weights.push_back(0.3f);
    }
  }
  const auto read = static_cast<double>(std::count(touched.begin(), touched.end(), true));
  const double weights = 3.0 * static_cast<double>(s.hidden * s.inter);
  const Work work{read * weights / 2 + weights,
                  2 * weights * static_cast<double>(tokens * (s.topk + 1)), true};
  return [state, s, work](Backend& backend) {
    const auto& layer = state->layers[state->turn++ % state->layers.size()];
    ExpertsArgs args;
    args.x = state->x.view();
    args.experts = std::span(layer).first(layer.size() - 1);
    args.shared = &layer.back();
    args.ids = state->ids.data();
    args.weights = state->weights.data();
    args.topk = s.topk;
    args.y = state->y.view();
    backend.experts(args);
    return work;
  };
}

// Packed rows of random values: `rows` of one format, one after the other.
std::vector<std::byte> packed_rows(TestInputs& in, const RowFormat& format, int64_t rows) {
  std::vector<std::byte> result(static_cast<size_t>(rows * format.bytes()));
  OwnedRows x = in.activations(rows, format.width);
  std::vector<int64_t> offset(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i) offset[static_cast<size_t>(i)] = i * format.bytes();
  reference_backend().store_rows({x.view(), format, result.data(), 0, offset.data()});
  return result;
}

struct AttendShape {
  const char* name;
  int64_t heads, dim, window, topk;
};

Run attend(const AttendShape& s, int64_t tokens) {
  struct State {
    OwnedRows q, out;
    std::vector<std::byte> fresh, pages;
    std::vector<float> sink;
    std::vector<int32_t> sequence, table, selected;
    std::vector<int64_t> begin, end;
    int64_t zero = 0;
  };
  TestInputs in(3);
  const RowFormat window{RowKind::kQ8, s.dim};
  const RowFormat entry{RowKind::kQ4Entry, s.dim};
  constexpr int64_t kPerBlock = 64;
  auto state = std::make_shared<State>(
      State{in.activations(tokens, s.heads * s.dim, 0.3f), OwnedRows(tokens, s.heads * s.dim)});
  state->fresh = packed_rows(in, window, s.window + tokens);
  state->pages = packed_rows(in, entry, 64 * kPerBlock);
  state->sink = in.normals(s.heads, 1);
  for (int32_t b = 0; b < 64; ++b) state->table.push_back(b);
  for (int64_t t = 0; t < tokens; ++t) {
    state->sequence.push_back(0);
    state->begin.push_back(t);
    state->end.push_back(t + s.window);
    for (int64_t k = 0; k < s.topk; ++k) {
      state->selected.push_back(static_cast<int32_t>(k * 64 * kPerBlock / s.topk));
    }
  }
  return [state, s, tokens, window, entry](Backend& backend) {
    AttendArgs args;
    args.q = state->q.view();
    args.out = state->out.view();
    args.heads = s.heads;
    args.sink = {state->sink.data(), s.heads};
    args.sequence = state->sequence.data();
    args.window_begin = state->begin.data();
    args.window_end = state->end.data();
    args.window_format = window;
    args.fresh = state->fresh.data();
    args.step_start = args.step_row = args.ring_offset = &state->zero;
    args.ring_rows = s.window;
    args.entries.base = state->pages.data();
    args.entries.block_bytes = kPerBlock * entry.bytes();
    args.entries.rows_per_block = kPerBlock;
    args.entries.format = entry;
    args.entries.table = state->table.data();
    args.entries.table_begin = &state->zero;
    args.selected = state->selected.data();
    args.topk = s.topk;
    backend.attend(args);
    const int64_t bytes = tokens * (s.window * window.bytes() + s.topk * entry.bytes());
    return Work{static_cast<double>(bytes),
                4.0 * static_cast<double>(tokens * s.heads * s.dim * (s.window + s.topk))};
  };
}

struct IndexShape {
  const char* name;
  int64_t heads, dim, topk, visible;
};

Run index_select(const IndexShape& s, int64_t tokens) {
  struct State {
    OwnedRows q, weight;
    std::vector<std::byte> pages;
    std::vector<int32_t> sequence, table, selected;
    std::vector<int64_t> visible;
    int64_t zero = 0;
  };
  TestInputs in(4);
  const RowFormat key{RowKind::kQ4Index, s.dim};
  auto state = std::make_shared<State>(
      State{in.activations(tokens, s.heads * s.dim), in.activations(tokens, s.heads, 0.1f)});
  state->pages = packed_rows(in, key, s.visible);
  state->table.push_back(0);
  state->sequence.resize(static_cast<size_t>(tokens));
  state->selected.resize(static_cast<size_t>(tokens * s.topk));
  state->visible.assign(static_cast<size_t>(tokens), s.visible);
  return [state, s, tokens, key](Backend& backend) {
    IndexSelectArgs args;
    args.q = state->q.view();
    args.weight = state->weight.view();
    args.heads = s.heads;
    args.keys.base = state->pages.data();
    args.keys.rows_per_block = s.visible;
    args.keys.format = key;
    args.keys.table = state->table.data();
    args.keys.table_begin = &state->zero;
    args.sequence = state->sequence.data();
    args.visible = state->visible.data();
    args.topk = s.topk;
    args.selected = state->selected.data();
    backend.index_select(args);
    return Work{static_cast<double>(s.visible * key.bytes()),
                2.0 * static_cast<double>(tokens * s.heads * s.dim * s.visible)};
  };
}

Run hc_mix(int64_t hidden, int64_t tokens) {
  struct State {
    std::vector<OwnedMatrix> fn;
    std::vector<float> base, scale;
    OwnedRows h, pre, post, comb;
    size_t turn = 0;
  };
  TestInputs in(5);
  auto state = std::make_shared<State>(State{{},
                                             in.normals(24, 1),
                                             {1, 1, 1},
                                             in.activations(tokens, 4 * hidden),
                                             OwnedRows(tokens, 4),
                                             OwnedRows(tokens, 4),
                                             OwnedRows(tokens, 16)});
  for (int64_t bytes = 0; bytes < kBeyondCaches; bytes += 24 * 4 * hidden * 4) {
    OwnedMatrix m = random_matrix(WeightFormat::kF32, 24, 4 * hidden);
    for (size_t i = 3; i < m.data.size(); i += 4) m.data[i] = 0x3C;  // about 0.01
    state->fn.push_back(std::move(m));
  }
  return [state, hidden, tokens](Backend& backend) {
    const HcWeights weights{state->fn[state->turn++ % state->fn.size()].view,
                            {state->base.data(), 24},
                            {state->scale.data(), 3}};
    HcMixArgs args;
    args.weights = &weights;
    args.h = state->h.view();
    args.norm_eps = 1e-20f;
    args.hc_eps = 1e-6f;
    args.pre = state->pre.view();
    args.post = state->post.view();
    args.comb = state->comb.view();
    backend.hc_mix(args);
    return Work{static_cast<double>(bytes_of(weights.fn)),
                2.0 * static_cast<double>(tokens * 24 * 4 * hidden)};
  };
}

const bool kRegistered = [] {
  Machine::get();  // before the context is printed
  using enum WeightFormat;
  const auto tokens_name = [](const char* name, int64_t tokens) {
    return std::string(name) + "/" + std::to_string(tokens);
  };
  for (const int64_t tokens : {1, 4, 8, 128, 512}) {
    for (const LinearShape& s : {LinearShape{"linear/mini/wq_b", kFp8Block, 512, 128, 1, true},
                                 {"linear/mini/wo_a", kFp8Block, 256, 256, 2, false},
                                 {"linear/mini/head", kBf16, 8192, 256, 1, false},
                                 {"linear/released/wq_a", kFp8Block, 1280, 5120, 1, true},
                                 {"linear/released/wq_b", kFp8Block, 32768, 1280, 1, true},
                                 {"linear/released/wo_a", kFp8Block, 8192, 4096, 8, false},
                                 {"linear/released/wo_b", kFp8Block, 5120, 8192, 1, true},
                                 {"linear/released/gate", kBf16, 384, 5120, 1, false}}) {
      add(tokens_name(s.name, tokens), [s, tokens] { return linear(s, tokens); });
    }
    for (const MoeShape& s : {MoeShape{"experts/mini", 16, 6, 256, 128},
                              {"experts/released_8_of_384", 8, 6, 5120, 2304}}) {
      add(tokens_name(s.name, tokens), [s, tokens] { return experts(s, tokens); });
    }
    for (const AttendShape& s :
         {AttendShape{"attend/mini", 4, 128, 128, 64}, {"attend/released", 64, 512, 128, 512}}) {
      add(tokens_name(s.name, tokens), [s, tokens] { return attend(s, tokens); });
    }
    for (const IndexShape& s : {IndexShape{"index_select/mini", 4, 64, 64, 4096},
                                {"index_select/released", 32, 128, 512, 16384}}) {
      add(tokens_name(s.name, tokens), [s, tokens] { return index_select(s, tokens); });
    }
    add(tokens_name("hc_mix/mini", tokens), [tokens] { return hc_mix(256, tokens); });
    add(tokens_name("hc_mix/released", tokens), [tokens] { return hc_mix(5120, tokens); });
  }
  return true;
}();

}  // namespace
}  // namespace tidemill
