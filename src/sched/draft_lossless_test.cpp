// Which rules of verification keep the target's distribution? Computed exactly, not sampled: all
// drafts of a tiny language are enumerated with their probabilities, a rule picks the lengths, and
// the joint distribution of the next three tokens of all requests after rejection sampling is
// compared with the target's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "sched/draft_budget.h"
#include "sched/draft_random.h"

namespace tidemill {
namespace {

constexpr int32_t kDrafts = 2;            // of a request
constexpr int32_t kTokens = kDrafts + 1;  // whose distribution is compared
constexpr size_t kTexts = 1u << kTokens;  // two words; a text of kTokens is a binary number
using Texts = std::array<double, kTexts>;

// Nodes of the tree of texts: 1 is the empty one, 2 * node + word the next.
struct Language {
  std::array<double, kTexts> target{};  // probability of word 1 after a node
  std::array<double, kTexts> drafter{};
  std::array<float, kTexts> confidence{};  // in the draft after a node
};

double probability(double of_one, size_t word) { return word == 1 ? of_one : 1.0 - of_one; }

// Adds the target's own continuations of `node` up to kTokens words.
void extend(const Language& language, size_t node, double weight, Texts& texts) {
  if (weight == 0.0) return;
  if (node >= kTexts) {
    texts[node - kTexts] += weight;
    return;
  }
  for (const size_t word : {0u, 1u}) {
    extend(language, 2 * node + word, weight * probability(language.target[node], word), texts);
  }
}

// Rejection sampling of the first `length` of `drafts`.
Texts verify(const Language& language, const std::array<size_t, kDrafts>& drafts, int32_t length) {
  Texts texts{};
  size_t node = 1;
  double reached = 1.0;
  for (int32_t k = 0; k < length; ++k) {
    const double p = language.target[node], q = language.drafter[node];
    const size_t x = drafts[k];
    const double accept = std::min(1.0, probability(p, x) / probability(q, x));
    // Of two words the residual is all on the other one.
    extend(language, 2 * node + (1 - x), reached * (1.0 - accept), texts);
    reached *= accept;
    node = 2 * node + x;
  }
  extend(language, node, reached, texts);
  return texts;
}

using Drafts = std::array<size_t, kDrafts>;
// Lengths from what a scheduler sees; `drafts` are there for rules that cheat.
using Rule = std::function<std::vector<int32_t>(const DraftBatch&, const std::vector<Drafts>&)>;

// The largest difference between the joint distribution of two requests' texts under `rule` and
// the target's.
double bias(const std::array<Language, 2>& languages, const Rule& rule) {
  std::array<Texts, kTexts> joint{};
  for (size_t code = 0; code < 16; ++code) {
    std::vector<Drafts> drafts(2);
    std::vector<float> confidence;
    double weight = 1.0;
    for (size_t r = 0; r < 2; ++r) {
      size_t node = 1;
      for (int32_t k = 0; k < kDrafts; ++k) {
        const size_t word = code >> (2 * r + static_cast<size_t>(k)) & 1;
        drafts[r][k] = word;
        confidence.push_back(languages[r].confidence[node]);
        weight *= probability(languages[r].drafter[node], word);
        node = 2 * node + word;
      }
    }
    if (weight == 0.0) continue;
    const DraftBatch batch{.confidence = confidence, .requests = 2, .draft_length = kDrafts};
    const std::vector<int32_t> lengths = rule(batch, drafts);
    const Texts first = verify(languages[0], drafts[0], lengths[0]);
    const Texts second = verify(languages[1], drafts[1], lengths[1]);
    for (size_t i = 0; i < kTexts; ++i) {
      for (size_t j = 0; j < kTexts; ++j) joint[i][j] += weight * first[i] * second[j];
    }
  }
  Texts first{}, second{};
  extend(languages[0], 1, 1.0, first);
  extend(languages[1], 1, 1.0, second);
  double largest = 0.0;
  for (size_t i = 0; i < kTexts; ++i) {
    for (size_t j = 0; j < kTexts; ++j) {
      largest = std::max(largest, std::abs(joint[i][j] - first[i] * second[j]));
    }
  }
  return largest;
}

std::array<Language, 2> random_languages(Random& random) {
  std::array<Language, 2> languages;
  for (Language& language : languages) {
    for (size_t node = 0; node < kTexts; ++node) {
      language.target[node] = 0.05 + 0.9 * random.uniform();
      language.drafter[node] = 0.05 + 0.9 * random.uniform();
      const float values[] = {1.0f, 0.5f, 0.25f, static_cast<float>(random.uniform())};
      language.confidence[node] = values[random.below(4)];  // ties often
    }
  }
  return languages;
}

DraftCost random_cost(Random& random) {
  std::vector<CostPoint> points;
  double ms = 1.0;
  for (int64_t t = 1; t <= 6; ++t) {
    if (random.below(3) != 0) points.push_back({t, ms});
    ms += random.below(4) * 0.3;
  }
  points.push_back({8, ms});
  return DraftCost(*CostCurve::create(points, 8));
}

// The paper's counterexample: steps per second of 1, 2 and 3 rows are 1, 0.5 and 0.45, the first
// draft survives with 0.8. It pays only together with a second one that is likely too, and how
// likely that is depends on the first draft's word.
struct Counterexample {
  DraftCost cost{*CostCurve::create({{1, 1.0}, {2, 1.0 / 0.5}, {3, 1.0 / 0.45}}, 3)};
  std::array<Language, 2> languages;

  Counterexample() {
    for (Language& language : languages) {
      language.target.fill(0.5);
      language.drafter.fill(0.7);
      language.confidence.fill(0.0f);
      language.confidence[1] = 0.8f;
      language.confidence[3] = 0.9f;  // after word 1
    }
  }

  // Applies `lengths` to each request by itself, as if it were alone in the step.
  static Rule alone(std::function<void(const DraftBatch&, std::span<int32_t>)> lengths) {
    return [lengths](const DraftBatch& both, const std::vector<Drafts>&) {
      std::vector<int32_t> out(2);
      for (size_t r = 0; r < 2; ++r) {
        lengths({.confidence = both.confidence.subspan(r * kDrafts, kDrafts),
                 .requests = 1,
                 .draft_length = kDrafts},
                std::span(out).subspan(r, 1));
      }
      return out;
    };
  }
};

TEST(Losslessness, ASearchOverTheDraftsOwnConfidencesIsBiased) {
  const Counterexample example;
  EXPECT_GT(bias(example.languages, Counterexample::alone([&](const DraftBatch& batch, auto out) {
                   allocate_drafts(batch, search_budget(batch, example.cost).drafts, out);
                 })),
            0.01);
}

TEST(Losslessness, AChoiceOfAFixedLengthByTheDraftsOwnConfidencesIsBiased) {
  const Counterexample example;
  EXPECT_GT(bias(example.languages, Counterexample::alone([&](const DraftBatch& batch, auto out) {
                   early_stop(batch, example.cost, best_start(batch, example.cost), out);
                 })),
            0.01);
}

TEST(Losslessness, EarlyStopHoldsInTheCounterexample) {
  const Counterexample example;
  EXPECT_LT(bias(example.languages, Counterexample::alone([&](const DraftBatch& batch, auto out) {
                   early_stop(batch, example.cost, {}, out);
                 })),
            1e-14);
}

// A grammar must not shorten the drafts to those it allows: that looks at the word itself.
TEST(Losslessness, LimitsThatLookAtTheDraftAreBiased) {
  Random random(1);
  auto languages = random_languages(random);
  for (Language& language : languages) language.target[1] = 0.0;  // word 1 is not allowed at first
  const auto all = [](const DraftBatch&, const std::vector<Drafts>&) {
    return std::vector<int32_t>{kDrafts, kDrafts};
  };
  EXPECT_LT(bias(languages, all), 1e-14);
  for (Language& language : languages) language.target = {0.4, 0.4, 0.0, 0.4, 0.4, 0.4, 0.4, 0.4};
  const auto cut = [](const DraftBatch&, const std::vector<Drafts>& drafts) {
    std::vector<int32_t> lengths;
    for (const Drafts& d : drafts) lengths.push_back(d[0] == 1 ? 0 : kDrafts);
    return lengths;
  };
  EXPECT_GT(bias(languages, cut), 0.01);
}

// kPublished and kLagged: the number of drafts comes from elsewhere.
TEST(Losslessness, AllocationOfAGivenNumberByFreshConfidencesHolds) {
  Random random(2);
  for (int round = 0; round < 300; ++round) {
    const auto languages = random_languages(random);
    for (int64_t drafts = 0; drafts <= 2 * kDrafts; ++drafts) {
      const auto rule = [&](const DraftBatch& batch, const std::vector<Drafts>&) {
        std::vector<int32_t> lengths(2);
        allocate_drafts(batch, drafts, lengths);
        return lengths;
      };
      ASSERT_LT(bias(languages, rule), 1e-14) << round << " " << drafts;
    }
  }
}

TEST(Losslessness, LengthsFromElsewhereHold) {
  Random random(3);
  for (int round = 0; round < 100; ++round) {
    const auto languages = random_languages(random);
    for (int32_t code = 0; code < 9; ++code) {
      const auto rule = [&](const DraftBatch&, const std::vector<Drafts>&) {
        return std::vector<int32_t>{code / 3, code % 3};
      };
      ASSERT_LT(bias(languages, rule), 1e-14) << round << " " << code;
    }
  }
}

TEST(Losslessness, EarlyStopFromAnyStartHolds) {
  Random random(4);
  for (int round = 0; round < 300; ++round) {
    const auto languages = random_languages(random);
    const DraftCost cost = random_cost(random);
    for (int32_t first = 0; first <= kDrafts; ++first) {
      const auto rule = [&](const DraftBatch& batch, const std::vector<Drafts>&) {
        std::vector<int32_t> lengths(2);
        early_stop(batch, cost, {first, true}, lengths);
        return lengths;
      };
      ASSERT_LT(bias(languages, rule), 1e-14) << round << " " << first;
    }
  }
}

// The test's own eyes: over random languages and costs the peeking search is found out.
TEST(Losslessness, PeekingIsFoundInRandomLanguagesToo) {
  Random random(5);
  int found = 0;
  for (int round = 0; round < 300; ++round) {
    const auto languages = random_languages(random);
    const DraftCost cost = random_cost(random);
    const auto rule = [&](const DraftBatch& batch, const std::vector<Drafts>&) {
      std::vector<int32_t> lengths(2);
      allocate_drafts(batch, search_budget(batch, cost).drafts, lengths);
      return lengths;
    };
    found += bias(languages, rule) > 1e-6;
  }
  EXPECT_GT(found, 20);
}

}  // namespace
}  // namespace tidemill
