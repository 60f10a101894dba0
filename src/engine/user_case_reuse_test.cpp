// Bugs that users of other engines have met, as tests of the whole engine: prefixes that are not
// found again, or found and wrong. Numbers are those of docs/user-cases.md, which says where the
// other cases are tested.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "engine/test_plant.h"

namespace tidemill {
namespace {

using testing::HasSubstr;

constexpr int64_t kWindow = 32;  // of the micro checkpoint
constexpr int64_t kBlock = 128;

Request with_tail(const std::vector<int32_t>& prefix, int64_t tail, uint32_t seed) {
  Request r = test_request(std::max<int64_t>(1, tail), seed, 4);
  if (tail == 0) r.prompt.clear();
  r.prompt.insert(r.prompt.begin(), prefix.begin(), prefix.end());
  return r;
}

// Case 12, through the engine: hits without windows. Requests with the same hit get the same
// answer, alone and beside others; what is too short to gain anything is no hit and says so; the
// cached rows stay, so that one that wants them later finds them as they were.
TEST(UserCase, AReplayAfterAHitIsTheSameForEveryone) {
  constexpr int64_t kKeep = 40;
  Options options = Plant::options(4, 1024, 0, 200);
  options.replay_keep = kKeep;
  options.encoder_replay = true;
  options.window_lifetime_s = 1e-9;  // windows are never there
  Plant plant(options);
  const auto text = random_prompt(700, 12);
  plant.run(with_tail(text, 0, 1));
  for (const int64_t length : {1, 127, 128, 167, 168, 169, 295, 296, 297, 699, 700}) {
    Request r = with_tail({text.begin(), text.begin() + length}, 0, 3);
    r.max_tokens = 16;
    r.sampling.logprobs = 5;
    const int64_t adopted = std::max<int64_t>(0, length - kKeep) / kBlock * kBlock;
    const Collected first = plant.run(r);
    EXPECT_EQ(first.usage.cached_tokens, adopted > 0 ? adopted - kWindow : 0)
        << length << ": " << first.usage.cache_text;
    const RequestId other = *plant->submit(test_request(90, 77, 40));
    plant.step();
    const RequestId second = *plant->submit(r);
    plant.run();
    EXPECT_EQ(plant.answer(second).tokens, first.tokens) << length;
    for (size_t i = 0; i < first.logprobs.size(); ++i) {
      EXPECT_EQ(plant.answer(second).logprobs[i].chosen.logprob, first.logprobs[i].chosen.logprob);
    }
    EXPECT_EQ(plant.answer(other).ends, 1);
  }
  EXPECT_GT(plant->stats().cache_replays, 0);
  plant.expect_idle();
}

// Case 66: 12 turns with a fixed prefix and fresh tails of any length. Windows are saved where a
// step ends; the second turn finds where the prefix really ends, and saves them there for all that
// follow.
TEST(UserCase, EveryTurnFindsItsPrefix) {
  const auto prefix = random_prompt(700, 66);
  for (const int64_t step : {160, 512}) {
    for (const int64_t tail : {0, 100, 500}) {
      Plant plant(Plant::options(2, 1664, 0, step));
      for (uint32_t turn = 0; turn < 12; ++turn) {
        const Collected answer = plant.run(with_tail(prefix, tail, 660 + turn));
        if (turn == 0) continue;
        const int64_t lacks = turn == 1 ? step / kBlock * kBlock : kBlock;
        EXPECT_GE(answer.usage.cached_tokens, 700 - lacks - kWindow)
            << "turn " << turn << " with a tail of " << tail << ": " << answer.usage.cache_text;
      }
    }
  }
}

// Case 67: hits from the smallest possible prompt on, by the rule that is told at the start.
TEST(UserCase, ShortPromptsHitByTheToldRule) {
  Plant plant(Plant::options(2, 2048, 0, 512));
  EXPECT_THAT(plant->info().cache_rule, HasSubstr("smallest reusable prefix: 129 tokens"));
  const auto text = random_prompt(2000, 67);
  int64_t cached = 0;
  for (const int64_t length : {64, 127, 128, 129, 130, 256, 257, 512, 1024, 1025, 1500, 2000}) {
    const Request r = with_tail({text.begin(), text.begin() + length}, 0, 1);
    EXPECT_EQ(plant.run(r).usage.cached_tokens, cached) << length << ", first time";
    cached = (length - 1) / kBlock * kBlock;
    const Collected again = plant.run(r);
    EXPECT_EQ(again.usage.cached_tokens, cached) << length << ": " << again.usage.cache_text;
    if (cached == 0) {
      EXPECT_THAT(again.usage.cache_text, HasSubstr("smallest reusable prefix of 129"));
    }
    cached = length / kBlock * kBlock;  // the next one is longer
  }
}

// Case 68: two long conversations in turn, each as if it were alone, while blocks are free.
TEST(UserCase, ANeighbourDoesNotWipeTheCache) {
  const auto turn_of = [](uint32_t session, int64_t turn) {
    return with_tail(random_prompt(600 + 90 * turn, session), 20, 4);
  };
  // A session ends with 9 blocks.
  Plant solo(Plant::options(2, 1280, 8 * 9, 512));
  Plant both(Plant::options(2, 1280, 8 * 9, 512));
  for (int64_t turn = 0; turn < 6; ++turn) {
    const Collected alone = solo.run(turn_of(1, turn));
    for (const uint32_t session : {1u, 2u}) {
      EXPECT_EQ(both.run(turn_of(session, turn)).usage.cached_tokens, alone.usage.cached_tokens);
    }
    EXPECT_EQ(alone.usage.cached_tokens > 0, turn > 0) << alone.usage.cache_text;
  }
  EXPECT_EQ(both->stats().cache_evicted_blocks, 0);
  EXPECT_EQ(both->stats().cache_hit_tokens, 2 * solo->stats().cache_hit_tokens);
  // Then many others pass through: blocks are given up when there are no free ones, not before.
  for (uint32_t seed = 0; both->stats().cache_evicted_blocks == 0; ++seed) {
    ASSERT_LT(seed, 20u);
    both.run(test_request(1200, 680 + seed, 4));
    const Stats stats = both->stats();
    if (stats.cache_blocks < stats.pool_blocks - 10) {
      EXPECT_EQ(stats.cache_evicted_blocks, 0);
    }
  }
}

struct Feature {
  const char* name;
  std::function<void(Options&)> option;
  std::function<void(Request&)> request;
};

// Case 69: a feature alone or two together never switch reuse off: the counters are equal.
TEST(UserCase, NoFeatureSwitchesReuseOff) {
  const std::vector<Feature> features = {
      {"none"},
      {"drafts", [](Options& o) { o.drafts = "fixed:3"; }},
      {"dynamic drafts, rejection",
       [](Options& o) {
         o.drafts = "dynamic-lagged";
         o.verification = "rejection";
       }},
      {"suspend", [](Options& o) { o.suspend_bytes = 1 << 20; }},
      {"replay", [](Options& o) { o.replay_keep = 40; }},
      {"small steps", [](Options& o) { o.max_step_tokens = 50; }},
      {"constraint",
       {},
       [](Request& r) {
         r.constraint = Constraint{.kind = Constraint::Kind::kRegex, .text = "[a-zA-Z0-9 ]{3}"};
       }},
      {"answers", {}, [](Request& r) { r.n = 2; }},
      {"logprobs, stop, penalties",
       {},
       [](Request& r) {
         r.sampling.logprobs = 3;
         r.sampling.frequency_penalty = 0.5f;
         r.sampling.repetition_penalty = 1.1f;
         r.stop = {"never to be found"};
         r.tag = "tagged";
         r.tenant = 7;
         r.priority = 3;
         r.timeout_ms = 1e6;
       }},
  };
  for (size_t i = 0; i < features.size(); ++i) {
    for (size_t j = i; j < features.size(); ++j) {
      Options options = Plant::options(4, 400);
      Request r = test_request(300, 69, 5);
      for (const Feature* feature : {&features[i], &features[j]}) {
        if (feature->option) feature->option(options);
        if (feature->request) feature->request(r);
      }
      if (r.constraint) {  // needs a tokenizer with all markers, and has a window of 128
        options.model = TIDEMILL_SOURCE_DIR "/models/mini";
        options.replay_keep = options.replay_keep > 0 ? 140 : 0;
      }
      const int64_t hit = (300 - std::max<int64_t>(1, options.replay_keep)) / kBlock * kBlock;
      Plant plant(options);
      plant.run(r);
      const Stats before = plant->stats();
      const RequestId id = *plant->submit(r);
      plant.run();
      const Stats after = plant->stats();
      SCOPED_TRACE(std::string(features[i].name) + " and " + features[j].name);
      EXPECT_EQ(after.cache_lookups - before.cache_lookups, r.n);
      EXPECT_EQ(after.cache_hits - before.cache_hits, r.n);
      EXPECT_EQ(after.cache_hit_tokens - before.cache_hit_tokens, hit * r.n);
      EXPECT_EQ(after.prefill_tokens - before.prefill_tokens, (300 - hit) * r.n);
      for (int64_t k = 0; k < r.n; ++k) {
        EXPECT_EQ(plant.answer(id, k).usage.cached_tokens, hit)
            << plant.answer(id, k).usage.cache_text;
        EXPECT_EQ(plant.answer(id, k).error.message, "");
      }
    }
  }
}

}  // namespace
}  // namespace tidemill
