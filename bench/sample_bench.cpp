// One token from one row of logits, by vocabulary: 8192 (bundled model) and 129280 (released).
#include <benchmark/benchmark.h>

#include <cstdint>
#include <random>
#include <vector>

#include "sample/log_probabilities.h"
#include "sample/sampler.h"
#include "sample/verify.h"

namespace tidemill {
namespace {

// Like a language model's row: a broad bulk, some twenty candidates above it.
std::vector<float> make_row(int64_t vocabulary, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> bulk(0.0f, 2.5f);
  std::vector<float> row(vocabulary);
  for (float& logit : row) logit = bulk(generator);
  for (int i = 0; i < 20; ++i) row[generator() % row.size()] = 18.0f - 0.4f * static_cast<float>(i);
  return row;
}

SamplingParams greedy() {
  SamplingParams params;
  params.temperature = 0.0f;
  return params;
}
SamplingParams top_k(int32_t k) {
  SamplingParams params;
  params.top_k = k;
  return params;
}
SamplingParams top_p(float temperature) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_p = 0.95f;
  return params;
}
SamplingParams min_p() {
  SamplingParams params;
  params.min_p = 0.05f;
  return params;
}
SamplingParams all() {
  SamplingParams params = top_p(0.8f);
  params.top_k = 50;
  params.min_p = 0.01f;
  params.repetition_penalty = 1.1f;
  params.presence_penalty = 0.5f;
  return params;
}

void sample(benchmark::State& state, const SamplingParams& params) {
  const int64_t vocabulary = state.range(0);
  const std::vector<float> row = make_row(vocabulary, 1);
  Sampler sampler(vocabulary);
  TokenHistory history;
  for (int32_t token = 0; token < 1000; ++token) history.add_output(token * 7);
  int64_t position = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(*sampler.sample(row, params, history, position++));
  }
}

void log_probabilities_top20(benchmark::State& state) {
  const std::vector<float> row = make_row(state.range(0), 1);
  LogProbabilities out;
  for (auto _ : state) {
    benchmark::DoNotOptimize(log_probabilities(row, 0, 20, 0, out).has_value());
  }
}

// Five drafts of the target's own distribution: all six rows are looked at.
void verify_rejection_5(benchmark::State& state) {
  const int64_t vocabulary = state.range(0);
  Sampler sampler(vocabulary);
  TokenHistory history;
  std::vector<float> target, q(5 * vocabulary);
  for (uint32_t j = 0; j < 6; ++j) {
    const std::vector<float> row = make_row(vocabulary, j);
    target.insert(target.end(), row.begin(), row.end());
  }
  std::vector<int32_t> drafts;
  for (int64_t j = 0; j < 5; ++j) {
    drafts.push_back(*sampler.draft(std::span(target).subspan(j * vocabulary, vocabulary), 1.0f,
                                    {1, j, NoiseStream::kDraft},
                                    std::span(q).subspan(j * vocabulary, vocabulary)));
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        verify_rejection(sampler, target, drafts, q, {}, history, 0)->accepted);
  }
}

void both(benchmark::internal::Benchmark* bench) {
  bench->Arg(8192)->Arg(129280)->Unit(benchmark::kMicrosecond);
}
BENCHMARK_CAPTURE(sample, greedy, greedy())->Apply(both);
BENCHMARK_CAPTURE(sample, temperature, SamplingParams{})->Apply(both);
BENCHMARK_CAPTURE(sample, top_k_50, top_k(50))->Apply(both);
BENCHMARK_CAPTURE(sample, top_p_peaked, top_p(1.0f))->Apply(both);
BENCHMARK_CAPTURE(sample, top_p_flat, top_p(8.0f))->Apply(both);
BENCHMARK_CAPTURE(sample, min_p, min_p())->Apply(both);
BENCHMARK_CAPTURE(sample, all, all())->Apply(both);
BENCHMARK(log_probabilities_top20)->Apply(both);
BENCHMARK(verify_rejection_5)->Apply(both);

}  // namespace
}  // namespace tidemill
