#include "sample/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>
#include <numeric>
#include <random>

#include "base/chi_square.h"

// Counts what the program allocates, for NoCallAllocates. Not inlined: g++ would take the pairing
// of new with free for a mistake.
static std::atomic<int64_t> allocations = 0;
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace tidemill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr float kMasked = -std::numeric_limits<float>::infinity();

// Probabilities of all tokens, in double precision, one full sort a step.
std::vector<double> naive(std::span<const float> logits, const SamplingParams& params,
                          const TokenHistory& history) {
  std::vector<double> values(logits.begin(), logits.end());
  for (const auto& [token, bias] : params.logit_bias) values[token] += bias;
  for (const auto& [token, counts] : history.counts()) {
    double& l = values[token];
    if (counts.in_prompt || counts.output > 0) {
      l = l > 0 ? l / params.repetition_penalty : l * params.repetition_penalty;
    }
    l -= params.frequency_penalty * static_cast<double>(counts.output);
    l -= counts.output > 0 ? params.presence_penalty : 0.0;
  }

  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return values[a] != values[b] ? values[a] > values[b] : a < b;
  });
  std::vector<double> p(values.size(), 0.0);
  if (params.temperature == 0.0f) {
    p[order[0]] = 1.0;
    return p;
  }
  const auto normalise = [&] {
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& value : p) value /= sum;
  };
  for (size_t i = 0; i < p.size(); ++i) {
    p[i] = std::exp((values[i] - values[order[0]]) / params.temperature);
  }
  normalise();
  for (double& value : p) value = value < params.min_p * p[order[0]] ? 0.0 : value;
  if (params.top_k > 0) {
    for (size_t rank = params.top_k; rank < p.size(); ++rank) p[order[rank]] = 0.0;
  }
  normalise();
  double before = 0.0;
  for (const size_t token : order) {
    const double own = p[token];
    if (params.top_p < 1.0f && before >= params.top_p) p[token] = 0.0;
    before += own;
  }
  normalise();
  return p;
}

std::vector<int32_t> support(const std::vector<float>& logits, const SamplingParams& params) {
  Sampler sampler(std::ssize(logits));
  const auto p = sampler.distribution(logits, params, {}, 0);
  return p ? std::vector<int32_t>(p->ids.begin(), p->ids.end()) : std::vector<int32_t>{};
}

SamplingParams with_top_k(int32_t k) {
  SamplingParams params;
  params.top_k = k;
  return params;
}
SamplingParams with_top_p(float p) {
  SamplingParams params;
  params.top_p = p;
  return params;
}
SamplingParams with_min_p(float p) {
  SamplingParams params;
  params.min_p = p;
  return params;
}
SamplingParams with_temperature(float temperature) {
  SamplingParams params;
  params.temperature = temperature;
  return params;
}

// Rows and parameters of all kinds: ties, masks, flat and steep, each option on or off.
TEST(Sampler, AgreesWithNaiveVersion) {
  std::mt19937 generator(5);
  const auto uniform = [&](float low, float high) {
    return std::uniform_real_distribution<float>(low, high)(generator);
  };
  const auto coin = [&] { return generator() % 2 == 0; };
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE(round);
    const int64_t vocabulary = 1 + generator() % (round % 50 == 0 ? 20000 : 300);
    const float step = coin() ? 0.5f : 0.0f;
    const float spread = uniform(0.1f, 8.0f);
    std::vector<float> logits(vocabulary);
    for (float& logit : logits) {
      logit = std::normal_distribution<float>(3.0f, spread)(generator);
      if (step > 0.0f) logit = std::round(logit / step) * step;
      if (generator() % 10 == 0) logit = kMasked;
    }
    logits[generator() % vocabulary] = 4.0f;

    SamplingParams params;
    TokenHistory history;
    if (coin()) params.temperature = uniform(0.05f, 3.0f);
    if (generator() % 10 == 0) params.temperature = 0.0f;
    if (coin()) params.top_k = static_cast<int32_t>(generator() % (vocabulary + 3));
    if (coin()) params.top_p = uniform(0.01f, 1.0f);
    if (coin()) params.min_p = uniform(0.0f, 0.3f);
    if (coin()) params.repetition_penalty = uniform(0.5f, 2.0f);
    if (coin()) params.frequency_penalty = uniform(-1.0f, 1.0f);
    if (coin()) params.presence_penalty = uniform(-1.0f, 1.0f);
    if (coin()) {
      params.logit_bias[static_cast<int32_t>(generator() % vocabulary)] = uniform(-9.0f, 9.0f);
    }
    for (int i = 0; i < 20; ++i) {
      const auto token = static_cast<int32_t>(generator() % vocabulary);
      coin() ? history.add_output(token) : history.add_prompt({&token, 1});
    }
    ASSERT_TRUE(params.validate(vocabulary));

    Sampler sampler(vocabulary);
    const auto p = sampler.distribution(logits, params, history, 0);
    ASSERT_TRUE(p) << p.error().message;
    const std::vector<double> expected = naive(logits, params, history);
    EXPECT_TRUE(std::is_sorted(p->ids.begin(), p->ids.end()));
    for (int32_t token = 0; token < vocabulary; ++token) {
      ASSERT_NEAR(p->probability(token), expected[token], 1e-6 + 1e-5 * expected[token]) << token;
      if (expected[token] > 1e-30) {
        ASSERT_GT(p->probability(token), 0.0) << token;
      }
    }
  }
}

TEST(Sampler, TopKKeepsLowerIdsAtATie) {
  EXPECT_THAT(support({1, 3, 2, 2, 2, 0}, with_top_k(3)), ElementsAre(1, 2, 3));
  EXPECT_THAT(support({2, 2, 2, 2}, with_top_k(1)), ElementsAre(0));
  EXPECT_THAT(support({2, 2, 2, 2}, with_top_k(4)), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(support({2, 2, 2, 2}, with_top_k(9)), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(support({kMasked, 2, kMasked, 1}, with_top_k(3)), ElementsAre(1, 3));
}

TEST(Sampler, TopPKeepsTheShortestListThatReachesIt) {
  EXPECT_THAT(support({2, 2, 2, 2}, with_top_p(0.5f)), ElementsAre(0, 1));
  EXPECT_THAT(support({2, 2, 2, 2}, with_top_p(0.51f)), ElementsAre(0, 1, 2));
  EXPECT_THAT(support({2, 2, 2, 2}, with_top_p(0.25f)), ElementsAre(0));
  EXPECT_THAT(support({0, 5, 4, 3}, with_top_p(1e-30f)), ElementsAre(1));
  EXPECT_THAT(support({0, 90, 0, 0}, with_top_p(0.999f)), ElementsAre(1));
  const float almost_one = std::nextafter(1.0f, 0.0f);
  EXPECT_THAT(support({2, 2, 2, 2}, with_top_p(almost_one)), ElementsAre(0, 1, 2, 3));
}

TEST(Sampler, MinPIsRelativeToTheLargest) {
  const float half = std::log(0.5f);
  EXPECT_THAT(support({0, half + 0.01f, half - 0.01f, 0}, with_min_p(0.5f)), ElementsAre(0, 1, 3));
  EXPECT_THAT(support({7, 3, 7, 6.9999f}, with_min_p(1.0f)), ElementsAre(0, 2));
  EXPECT_THAT(support({-1000, -2000, -1000}, with_min_p(1e-30f)), ElementsAre(0, 2));
}

// top_p counts what min-p and top-k have left: 4 equal tokens of 5 would need 0.8 * 4 / 5.
TEST(Sampler, TopPComesAfterTheOthers) {
  SamplingParams params = with_top_p(0.5f);
  params.top_k = 2;
  EXPECT_THAT(support({1, 1, 1, 1, 1, 1}, params), ElementsAre(0));
  params = with_top_p(0.5f);
  params.min_p = 0.9f;
  EXPECT_THAT(support({1, 1, 0.5f, 0.5f, 0.5f, 0.5f}, params), ElementsAre(0));
}

TEST(Sampler, GreedyTakesTheLowestOfTheLargest) {
  EXPECT_THAT(support({1, 5, 5, kMasked}, with_temperature(0.0f)), ElementsAre(1));
  EXPECT_THAT(support({1, 5, 5, kMasked}, with_temperature(1e-6f)), ElementsAre(1));
  SamplingParams params = with_temperature(0.0f);
  params.logit_bias = {{3, 100.0f}, {2, 0.5f}};
  EXPECT_THAT(support({1, 5, 5, kMasked}, params), ElementsAre(2));
  params.top_p = 0.5f;
  params.top_k = 3;
  EXPECT_THAT(support({1, 5, 5, kMasked}, params), ElementsAre(2));
}

TEST(Sampler, ExtremeTemperaturesAndLogits) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  EXPECT_THAT(support({0, kLargest, -kLargest}, with_temperature(2e-5f)), ElementsAre(1));
  EXPECT_THAT(support({0, 1, -1}, with_temperature(kLargest)), ElementsAre(0, 1, 2));
  EXPECT_THAT(support({-kLargest, -kLargest}, with_top_p(0.6f)), ElementsAre(0, 1));
  SamplingParams params = with_top_k(2);
  params.top_p = 0.9f;
  EXPECT_THAT(support({1e-45f, 0, 0}, params), ElementsAre(0, 1));
}

TEST(Sampler, BadRowsAreErrorsWithThePosition) {
  Sampler sampler(3);
  const std::vector<float> nan = {0, std::numeric_limits<float>::quiet_NaN(), 0};
  for (const float temperature : {0.0f, 1.0f}) {
    const auto result = sampler.sample(nan, with_temperature(temperature), {}, 41);
    ASSERT_FALSE(result);
    EXPECT_THAT(result.error().message, HasSubstr("position 41: nan at token 1"));
  }
  EXPECT_FALSE(sampler.sample(std::vector<float>(3, kMasked), {}, {}, 0));
  EXPECT_FALSE(sampler.sample(std::vector<float>(3, -kMasked), {}, {}, 0));
  EXPECT_FALSE(sampler.draft(nan, 1.0f, {}));
  // Finite logits that a penalty divides to infinity.
  SamplingParams params;
  params.repetition_penalty = 1e-30f;
  TokenHistory history;
  history.add_output(1);
  EXPECT_FALSE(sampler.sample(std::vector<float>{0, 1e30f, 0}, params, history, 0));
  // The sampler is as good as before.
  EXPECT_EQ(*sampler.sample(std::vector<float>{0, 90, 0}, {}, {}, 0), 1);
}

TEST(Sampler, DrawsFollowTheDistribution) {
  std::mt19937 generator(11);
  std::vector<float> logits(40);
  for (float& logit : logits) logit = std::normal_distribution<float>(0.0f, 1.5f)(generator);
  SamplingParams all = with_temperature(0.7f);
  all.top_k = 20;
  all.top_p = 0.9f;
  all.min_p = 0.02f;
  for (const SamplingParams& params : {SamplingParams{}, with_temperature(0.5f), with_top_k(5),
                                       with_top_p(0.8f), with_min_p(0.1f), all}) {
    Sampler sampler(40);
    std::vector<int64_t> counts(40);
    for (int64_t position = 0; position < 100000; ++position) {
      ++counts[*sampler.sample(logits, params, {}, position)];
    }
    EXPECT_LT(chi_square_z(counts, naive(logits, params, {})), 4.0);
  }
}

TEST(Sampler, DrawDependsOnSeedAndPositionOnly) {
  std::vector<float> logits(1000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 13) * 0.1f;
  Sampler one(1000), other(1000);
  SamplingParams params;
  params.seed = 99;
  std::vector<int32_t> forward, backward(50);
  for (int64_t position = 0; position < 50; ++position) {
    forward.push_back(*one.sample(logits, params, {}, position));
  }
  for (int64_t position = 49; position >= 0; --position) {  // with other requests in between
    (void)*other.sample(logits, with_top_k(3), {}, position);
    backward[position] = *other.sample(logits, params, {}, position);
  }
  EXPECT_EQ(forward, backward);
  params.seed = 100;
  EXPECT_NE(*one.sample(logits, params, {}, 0), forward[0]);
}

// The noise belongs to the token: a draw that truncation allows is not changed by it.
TEST(Sampler, TruncationKeepsADrawThatItAllows) {
  std::vector<float> logits(200);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = -0.02f * static_cast<float>(i);
  Sampler sampler(200);
  int same = 0;
  for (int64_t position = 0; position < 300; ++position) {
    const int32_t free = *sampler.sample(logits, {}, {}, position);
    const int32_t truncated = *sampler.sample(logits, with_top_k(60), {}, position);
    if (free < 60) {
      EXPECT_EQ(truncated, free);
    }
    same += truncated == free ? 1 : 0;
  }
  EXPECT_GT(same, 150);
}

TEST(Sampler, DraftReportsTheDistributionThatItDrewFrom) {
  const std::vector<float> logits = {0.0f, 1.0f, kMasked, 2.0f};
  Sampler sampler(4);
  std::vector<float> q(4);
  std::vector<int64_t> counts(4);
  for (int64_t position = 0; position < 50000; ++position) {
    ++counts[*sampler.draft(logits, 0.8f, {1, position, NoiseStream::kDraft}, q)];
  }
  const std::vector<double> expected = naive(logits, with_temperature(0.8f), {});
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(q[i], expected[i], 1e-6);
  EXPECT_LT(chi_square_z(counts, expected), 4.0);

  EXPECT_EQ(*sampler.draft(logits, 0.0f, {1, 0, NoiseStream::kDraft}, q), 3);
  EXPECT_THAT(q, ElementsAre(0, 0, 0, 1));
}

TEST(Sampler, NoCallAllocates) {
  constexpr int64_t kVocabulary = 5000;
  std::vector<float> logits(kVocabulary), q(kVocabulary);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 7);
  SamplingParams params = with_top_p(0.9f);
  params.top_k = 3000;
  params.presence_penalty = 1.0f;
  params.logit_bias = {{1, 1.0f}};
  TokenHistory history;
  history.add_output(3);
  Sampler sampler(kVocabulary);
  const int64_t before = allocations;
  for (int64_t position = 0; position < 10; ++position) {
    (void)*sampler.sample(logits, params, history, position);
    (void)*sampler.draft(logits, 1.0f, {1, position, NoiseStream::kDraft}, q);
  }
  EXPECT_EQ(allocations, before);
}

}  // namespace
}  // namespace tidemill
