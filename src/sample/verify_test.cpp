#include "sample/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "base/chi_square.h"

namespace tidemill {
namespace {

using Tokens = std::vector<int32_t>;
// A model: tokens so far -> logits of the next.
using Model = std::function<std::vector<float>(const Tokens&)>;

// Logits that look random and depend on the last two tokens; `blur` moves them to another model's.
Model random_model(int64_t vocabulary, float spread, float blur = 0.0f) {
  return [=](const Tokens& tokens) {
    const auto last = [&](size_t back) {
      return tokens.size() < back ? 0u : static_cast<uint32_t>(tokens[tokens.size() - back]) + 1u;
    };
    const auto normal = [&](uint32_t stream) {
      std::mt19937 generator(last(1) * 7919u + last(2) * 104729u + stream);
      std::vector<float> row(vocabulary);
      for (float& x : row) x = std::normal_distribution<float>(0.0f, 1.0f)(generator);
      return row;
    };
    std::vector<float> row = normal(1);
    const std::vector<float> other = normal(2);
    for (size_t i = 0; i < row.size(); ++i) row[i] = spread * (row[i] + blur * other[i]);
    return row;
  };
}

TokenHistory history_of(const Tokens& tokens) {
  TokenHistory history;
  for (const int32_t token : tokens) history.add_output(token);
  return history;
}

// Rows of the target behind tokens, tokens + drafts[0], ...
std::vector<float> target_rows(const Model& target, Tokens tokens, const Tokens& drafts) {
  std::vector<float> rows = target(tokens);
  for (const int32_t draft : drafts) {
    tokens.push_back(draft);
    const std::vector<float> row = target(tokens);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  return rows;
}

Tokens plain_run(const Model& target, const SamplingParams& params, int64_t vocabulary,
                 size_t length) {
  Sampler sampler(vocabulary);
  Tokens tokens;
  while (tokens.size() < length) {
    tokens.push_back(
        *sampler.sample(target(tokens), params, history_of(tokens), std::ssize(tokens)));
  }
  return tokens;
}

struct DraftKind {
  std::string name;
  // Draft for the position behind `tokens`; `right` is what the plain run says there.
  std::function<int32_t(const Tokens& tokens, int32_t right)> draft;
};

TEST(VerifyKeyed, TokensAreThoseOfARunWithoutDrafts) {
  constexpr int64_t kVocabulary = 50;
  constexpr size_t kLength = 60;
  const Model target = random_model(kVocabulary, 2.0f);
  const DraftKind kinds[] = {
      {"right", [](const Tokens&, int32_t right) { return right; }},
      {"wrong", [](const Tokens&, int32_t right) { return (right + 1) % 50; }},
      {"often right", [](const Tokens& t, int32_t r) { return t.size() % 3 == 0 ? 7 : r; }},
      {"always 0", [](const Tokens&, int32_t) { return 0; }},
      {"no such token", [](const Tokens& t, int32_t) { return t.size() % 2 ? -5 : 1 << 30; }},
  };
  SamplingParams penalised;
  penalised.seed = 17;
  penalised.repetition_penalty = 1.3f;
  penalised.frequency_penalty = 0.4f;
  penalised.presence_penalty = 0.3f;
  penalised.top_p = 0.9f;
  SamplingParams greedy;
  greedy.temperature = 0.0f;
  SamplingParams truncated;
  truncated.top_k = 8;
  truncated.min_p = 0.05f;
  for (const SamplingParams& params : {SamplingParams{}, penalised, greedy, truncated}) {
    const Tokens plain = plain_run(target, params, kVocabulary, kLength + 8);
    for (const DraftKind& kind : kinds) {
      for (size_t count = 0; count <= 7; ++count) {
        SCOPED_TRACE(kind.name + ", drafts: " + std::to_string(count));
        Sampler sampler(kVocabulary);
        Tokens tokens;
        size_t steps = 0;
        while (tokens.size() < kLength) {
          Tokens drafts, behind = tokens;
          for (size_t j = 0; j < count; ++j) {
            drafts.push_back(kind.draft(behind, plain[behind.size()]));
            behind.push_back(drafts.back());
          }
          TokenHistory history = history_of(tokens);
          const auto verdict = verify_keyed(sampler, target_rows(target, tokens, drafts), drafts,
                                            params, history, std::ssize(tokens));
          ASSERT_TRUE(verdict) << verdict.error().message;
          tokens.insert(tokens.end(), drafts.begin(), drafts.begin() + verdict->accepted);
          tokens.push_back(verdict->next);
          ++steps;
        }
        tokens.resize(kLength);
        ASSERT_EQ(tokens, Tokens(plain.begin(), plain.begin() + kLength));
        if (kind.name == "right") {
          EXPECT_EQ(steps, (kLength + count) / (count + 1));
        } else if (kind.name == "wrong" || kind.name == "no such token") {
          EXPECT_EQ(steps, kLength);
        }
      }
    }
  }
}

// Drafts from a model near the target, verified by keyed noise: those drawn with the target's own
// noise agree with it far more often than those drawn with other noise.
TEST(VerifyKeyed, SharedNoiseRaisesAcceptance) {
  constexpr int64_t kVocabulary = 200;
  const Model target = random_model(kVocabulary, 1.5f);
  const Model drafter = random_model(kVocabulary, 1.5f, 0.15f);
  const auto accepted = [&](NoiseStream stream) {
    Sampler sampler(kVocabulary);
    int64_t count = 0;
    for (int64_t position = 0; position < 2000; ++position) {
      const Tokens tokens = {static_cast<int32_t>(position % kVocabulary)};
      const Tokens drafts = {*sampler.draft(drafter(tokens), 1.0f, {0, position, stream})};
      TokenHistory history;
      count +=
          verify_keyed(sampler, target_rows(target, tokens, drafts), drafts, {}, history, position)
              ->accepted;
    }
    return static_cast<double>(count) / 2000.0;
  };
  const double shared = accepted(NoiseStream::kTarget);
  const double apart = accepted(NoiseStream::kDraft);
  RecordProperty("shared", std::to_string(shared));
  RecordProperty("apart", std::to_string(apart));
  EXPECT_GT(shared, 0.7);
  EXPECT_LT(apart, 0.2);
}

TEST(VerifyKeyed, HistoryIsAsBeforeAlsoAfterAnError) {
  Sampler sampler(3);
  SamplingParams params;
  params.presence_penalty = 1.0f;
  TokenHistory history = history_of({1, 2, 2});
  const Tokens drafts = {0, 0};
  std::vector<float> rows = {90, 0, 0, 90, 0, 0, 0, std::numeric_limits<float>::quiet_NaN(), 0};
  const auto verdict = verify_keyed(sampler, rows, drafts, params, history, 10);
  ASSERT_FALSE(verdict);
  EXPECT_THAT(verdict.error().message, testing::HasSubstr("position 12"));
  EXPECT_FALSE(verify_rejection(sampler, rows, drafts, {}, params, history, 10));
  EXPECT_EQ(history.counts().at(0).output, 0);
  EXPECT_EQ(history.counts().at(1).output, 1);
  EXPECT_EQ(history.counts().at(2).output, 2);
  // A row behind a rejected draft is never looked at.
  rows[3] = -90;
  const auto rejected = verify_keyed(sampler, rows, drafts, params, history, 10);
  ASSERT_TRUE(rejected);
  EXPECT_EQ(rejected->accepted, 1);
}

// ---- rejection sampling: the first tokens of many runs against the target's own probabilities

constexpr int64_t kSmall = 4;
constexpr size_t kRunLength = 3;

Model fixed(std::vector<float> probabilities) {
  for (float& p : probabilities) p = std::log(p);
  return [=](const Tokens&) { return probabilities; };
}

// Probability of every sequence of kRunLength tokens.
std::vector<double> sequence_probabilities(const Model& target, const SamplingParams& params) {
  Sampler sampler(kSmall);
  std::vector<double> result = {1.0};
  for (size_t length = 0; length < kRunLength; ++length) {
    std::vector<double> longer;
    for (size_t index = 0; index < result.size(); ++index) {
      Tokens tokens(length);
      for (size_t i = length, rest = index; i-- > 0; rest /= kSmall) {
        tokens[i] = static_cast<int32_t>(rest % kSmall);
      }
      const Distribution p = *sampler.distribution(target(tokens), params, history_of(tokens), 0);
      for (int32_t token = 0; token < kSmall; ++token) {
        longer.push_back(result[index] * p.probability(token));
      }
    }
    result = std::move(longer);
  }
  return result;
}

struct Drafter {
  std::string name;
  Model model;
  bool certain = false;  // drafts by argmax, q left out
};

// Drafts, verifies and commits as an engine does, run after run, each with a seed of its own.
std::vector<int64_t> count_sequences(const Model& target, const Drafter& drafter,
                                     SamplingParams params, size_t draft_count, int64_t runs) {
  Sampler sampler(kSmall);
  std::vector<int64_t> counts(static_cast<size_t>(std::pow(kSmall, kRunLength)));
  for (int64_t run = 0; run < runs; ++run) {
    params.seed = static_cast<uint64_t>(run);
    Tokens tokens;
    while (tokens.size() < kRunLength) {
      const int64_t position = std::ssize(tokens);
      Tokens drafts, behind = tokens;
      std::vector<float> q(drafter.certain ? 0 : draft_count * kSmall);
      for (size_t j = 0; j < draft_count; ++j) {
        const NoiseKey key{params.seed, std::ssize(behind), NoiseStream::kDraft};
        drafts.push_back(*sampler.draft(
            drafter.model(behind), drafter.certain ? 0.0f : params.temperature, key,
            drafter.certain ? std::span<float>() : std::span(q).subspan(j * kSmall, kSmall)));
        behind.push_back(drafts.back());
      }
      TokenHistory history = history_of(tokens);
      const Verdict verdict = *verify_rejection(sampler, target_rows(target, tokens, drafts),
                                                drafts, q, params, history, position);
      tokens.insert(tokens.end(), drafts.begin(), drafts.begin() + verdict.accepted);
      tokens.push_back(verdict.next);
    }
    size_t index = 0;
    for (size_t i = 0; i < kRunLength; ++i) index = index * kSmall + tokens[i];
    ++counts[index];
  }
  return counts;
}

class VerifyRejection : public testing::TestWithParam<size_t> {};  // number of drafts
INSTANTIATE_TEST_SUITE_P(Drafts, VerifyRejection, testing::Values(0, 1, 2, 5));

TEST_P(VerifyRejection, OutputHasTheTargetsDistribution) {
  const Model dependent = [](const Tokens& tokens) {
    std::vector<float> row = {0.0f, 0.5f, -0.7f, 1.1f};
    if (!tokens.empty()) row[tokens.back()] += 1.0f;
    return row;
  };
  const Model nearly = [&](const Tokens& tokens) {
    std::vector<float> row = dependent(tokens);
    row[0] -= 0.2f;
    row[2] += 0.3f;
    return row;
  };
  const Drafter drafters[] = {
      {"the target itself", dependent},
      {"nearly the target", nearly},
      {"uniform", fixed({0.25f, 0.25f, 0.25f, 0.25f})},
      {"sure of an unlikely token", fixed({0.001f, 0.001f, 0.997f, 0.001f})},
      {"blind to the likeliest token", fixed({0.3f, 0.3f, 0.4f, 0.0f})},
      {"argmax of the target", dependent, true},
      {"argmax, always the same", fixed({0.9f, 0.1f, 0.0f, 0.0f}), true},
  };
  SamplingParams truncated;
  truncated.temperature = 0.8f;
  truncated.top_k = 3;
  SamplingParams penalised;
  penalised.presence_penalty = 1.0f;
  for (const SamplingParams& params : {SamplingParams{}, truncated, penalised}) {
    const std::vector<double> expected = sequence_probabilities(dependent, params);
    for (const Drafter& drafter : drafters) {
      const auto counts = count_sequences(dependent, drafter, params, GetParam(), 10000);
      EXPECT_LT(chi_square_z(counts, expected), 4.0) << drafter.name;
    }
  }
}

// A draft that the target rules out: a token it never says, all of q's mass on it.
TEST(VerifyRejection, DraftsOfProbabilityZeroAreNeverAccepted) {
  const std::vector<float> target = {0, 1, 2, -std::numeric_limits<float>::infinity(), 0, 0, 0, 0};
  std::vector<int64_t> counts(kSmall);
  Sampler sampler(kSmall);
  for (int64_t position = 0; position < 20000; ++position) {
    TokenHistory history;
    const Tokens drafts = {position % 2 == 0 ? 3 : 1 << 30};
    const std::vector<float> q = {0, 0, 0, 1};
    const auto verdict = verify_rejection(sampler, target, drafts, q, {}, history, position);
    ASSERT_EQ(verdict->accepted, 0);
    ++counts[verdict->next];
  }
  const Distribution p = *sampler.distribution(std::span(target).first(kSmall), {}, {}, 0);
  const std::vector<double> expected = {p.probability(0), p.probability(1), p.probability(2), 0};
  EXPECT_LT(chi_square_z(counts, expected), 4.0);
}

// The share of accepted drafts is 1 - (total variation of p and q), which no method exceeds.
TEST(VerifyRejection, AcceptsTheOverlapOfPAndQ) {
  const std::vector<float> p = {0.5f, 0.3f, 0.15f, 0.05f}, q = {0.2f, 0.2f, 0.2f, 0.4f};
  const Model target = fixed(p), drafter = fixed(q);
  double overlap = 0.0;
  for (size_t i = 0; i < p.size(); ++i) overlap += std::min(p[i], q[i]);
  Sampler sampler(kSmall);
  int64_t accepted = 0;
  constexpr int64_t kRuns = 50000;
  std::vector<float> row(kSmall);
  for (int64_t position = 0; position < kRuns; ++position) {
    const Tokens drafts = {
        *sampler.draft(drafter({}), 1.0f, {0, position, NoiseStream::kDraft}, row)};
    TokenHistory history;
    accepted += verify_rejection(sampler, target_rows(target, {}, drafts), drafts, row, {}, history,
                                 position)
                    ->accepted;
  }
  EXPECT_NEAR(static_cast<double>(accepted) / kRuns, overlap, 0.01);
}

TEST(VerifyRejection, GreedyIsTheKeyedForm) {
  constexpr int32_t kVocabulary = 20;
  const Model target = random_model(kVocabulary, 2.0f);
  SamplingParams greedy;
  greedy.temperature = 0.0f;
  const Tokens plain = plain_run(target, greedy, kVocabulary, 30);
  Sampler sampler(kVocabulary);
  for (size_t start = 0; start + 6 < plain.size(); ++start) {
    for (size_t right = 0; right <= 5; ++right) {
      const Tokens tokens(plain.begin(), plain.begin() + static_cast<int64_t>(start));
      Tokens drafts(plain.begin() + static_cast<int64_t>(start),
                    plain.begin() + static_cast<int64_t>(start) + 5);
      if (right < 5) drafts[right] = (drafts[right] + 1) % kVocabulary;
      std::vector<float> q(5 * kVocabulary, 0.0f);
      for (size_t j = 0; j < 5; ++j) q[j * kVocabulary + drafts[j]] = 1.0f;
      TokenHistory history;
      for (const std::span<const float> rows : {std::span<const float>(q), {}}) {
        const auto verdict = verify_rejection(sampler, target_rows(target, tokens, drafts), drafts,
                                              rows, greedy, history, std::ssize(tokens));
        EXPECT_EQ(verdict->accepted, std::ssize(drafts) - (5 - static_cast<int64_t>(right)));
        EXPECT_EQ(verdict->next, plain[start + right]);
      }
    }
  }
}

// What a drafter computes is not trusted to be a distribution.
TEST(VerifyRejection, BadDraftRowsDoNoHarm) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> target(2 * kSmall, 1.0f);
  Sampler sampler(kSmall);
  for (const float bad : {kNan, kInfinity, -kInfinity, -1.0f, 0.0f}) {
    for (int64_t position = 0; position < 100; ++position) {
      TokenHistory history;
      const Tokens drafts = {2};
      const std::vector<float> q(kSmall, bad);
      const auto verdict = verify_rejection(sampler, target, drafts, q, {}, history, position);
      ASSERT_TRUE(verdict);
      EXPECT_GE(verdict->next, 0);
      EXPECT_LT(verdict->next, kSmall);
    }
  }
}

TEST(VerifyKeyed, AsksForTheRowsThatAreReached) {
  const Tokens own{3, 1, 4};
  const Tokens drafts{3, 5};
  int64_t asked = 0;
  const auto token = [&](int64_t j) -> Result<int32_t> {
    EXPECT_EQ(j, asked++);
    return own[static_cast<size_t>(j)];
  };
  const auto verdict = verify_keyed(drafts, token);
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->accepted, 1);
  EXPECT_EQ(verdict->next, 1);
  EXPECT_EQ(asked, 2);
  const auto failed = verify_keyed(drafts, [&](int64_t j) -> Result<int32_t> {
    if (j == 1) return fail(ErrorCode::kInternal, "row {}", j);
    return 3;
  });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message, "row 1");
}

}  // namespace
}  // namespace tidemill
