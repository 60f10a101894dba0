// Requests in a batch get the tokens they would get alone, whatever happens around them.
#include "tidemill/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "engine/no_wait.h"
#include "engine/test_plant.h"

namespace tidemill {
namespace {

using testing::HasSubstr;

TEST(Engine, NeighboursDraftsAndTheCacheCannotBeSeen) {
  for (const std::string drafts :
       {"off", "fixed:1", "fixed:3", "dynamic", "dynamic-lagged", "dynamic-early-stop"}) {
    for (const bool cache : {false, true}) {
      Options options = Plant::options();
      options.drafts = drafts;
      options.prefix_cache = cache;
      Plant plant(options);
      std::vector<std::pair<RequestId, Request>> sent;
      for (uint32_t seed = 1; seed <= 12; ++seed) {
        const Request r = test_request(1 + seed * 37 % 300, seed);
        sent.emplace_back(*plant->submit(r), r);
        plant.step();
      }
      plant.run();
      for (const auto& [id, r] : sent) {
        EXPECT_EQ(plant.answer(id).tokens, plain_answer(r).tokens) << id << " drafts " << drafts;
        EXPECT_EQ(plant.answer(id).ends, 1);
      }
      plant.expect_idle();
    }
  }
}

// For measurements: a long context without the time to compute it.
TEST(Engine, AFilledContextIsNotComputed) {
  Options options = Plant::options(4, 2048);
  options.fill_context = 1100;  // 8 blocks
  const auto refused = Engine::open(options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kConflictingOptions);
  options.prefix_cache = false;
  options.drafts = "fixed:2";
  Plant plant(options);
  std::vector<std::pair<RequestId, int64_t>> sent;
  for (const int64_t prompt : {1500, 1025, 1024, 90, 1300, 1024}) {
    sent.emplace_back(*plant->submit(test_request(prompt, 3, 8)), prompt);
  }
  plant.run();
  int64_t computed = 0;
  for (const auto& [id, prompt] : sent) {
    const Collected& answer = plant.answer(id);
    EXPECT_EQ(answer.finish, FinishReason::kLength) << answer.error.message;
    EXPECT_EQ(answer.tokens.size(), 8u);
    EXPECT_EQ(answer.usage.cached_tokens, std::min<int64_t>(1024, (prompt - 1) / 128 * 128));
    computed += prompt - answer.usage.cached_tokens;
  }
  EXPECT_EQ(plant->stats().prefill_tokens, computed);
  plant.expect_idle();
}

TEST(Engine, ASecondRequestReusesThePrefixOfTheFirst) {
  Plant plant(Plant::options(8, 1800, 0, 256));
  const Request first = test_request(1500, 7, 4);
  const Collected cold = plant.run(first);
  EXPECT_EQ(cold.usage.cached_tokens, 0);
  const int64_t before = plant->stats().prefill_tokens;
  const Collected warm = plant.run(first);
  EXPECT_EQ(warm.tokens, cold.tokens);
  EXPECT_EQ(warm.usage.cached_tokens, 1500 / 128 * 128);
  EXPECT_EQ(plant->stats().prefill_tokens - before, 1500 - 1500 / 128 * 128);
  EXPECT_THAT(warm.usage.cache_text, HasSubstr("hit 1408 of 1500 tokens"));

  // Another tail, an answer in the prefix, and another tenant that may not see it.
  Request other = first;
  other.prompt.resize(1000);
  other.prompt.insert(other.prompt.end(), {5, 6, 7});
  EXPECT_EQ(plant.run(other).tokens, plain_answer(other).tokens);
  Request foreign = first;
  foreign.cache_salt = "another tenant";
  const Collected apart = plant.run(foreign);
  EXPECT_EQ(apart.usage.cached_tokens, 0);
  EXPECT_EQ(apart.tokens, cold.tokens);
  plant.expect_idle();
}

// Every slot and block is used again while others run.
TEST(Engine, AHitAfterTheSlotsWereRecycled) {
  Plant plant(Plant::options(3, 512));
  const Request first = test_request(320, 9);
  const auto expected = plain_answer(first).tokens;
  EXPECT_EQ(plant.run(first).tokens, expected);
  for (uint32_t seed = 100; seed < 120; ++seed) plant.run(test_request(40 + seed % 50, seed, 5));
  const Collected again = plant.run(first);
  EXPECT_EQ(again.tokens, expected);
  EXPECT_GT(again.usage.cached_tokens, 0) << again.usage.cache_text;
}

// A pool far too small: requests are preempted and computed again, or leave for the host's memory
// and come back, and nobody can tell.
TEST(Engine, PreemptionCannotBeSeen) {
  for (const std::string drafts : {"off", "fixed:3", "dynamic"}) {
    for (const int64_t suspend_bytes : {int64_t{0}, int64_t{64} << 20}) {
      Options options = Plant::options(8, 600, 9);
      options.drafts = drafts;
      options.suspend_bytes = suspend_bytes;
      Plant plant(options);
      std::vector<std::pair<RequestId, Request>> sent;
      for (uint32_t seed = 1; seed <= 10; ++seed) {
        const Request r = test_request(90 + seed * 13, seed, 120);
        sent.emplace_back(*plant->submit(r), r);
      }
      plant.run();
      for (const auto& [id, r] : sent) {
        EXPECT_EQ(plant.answer(id).tokens, plain_answer(r).tokens) << id << " drafts " << drafts;
        EXPECT_EQ(plant.answer(id).ends, 1) << id;
      }
      EXPECT_GT(plant->stats().preemptions, 0);
      EXPECT_EQ(plant->stats().suspends > 0, suspend_bytes > 0);
      plant.expect_idle();
    }
  }
}

TEST(Engine, RandomTrafficWithCancelsEndsEveryRequestOnce) {
  for (const bool own_thread : {false, true}) {
    std::mt19937 random(3);
    Options options = Plant::options(6, 400, 8);
    options.drafts = "fixed:2";
    options.suspend_bytes = 1 << 20;
    options.own_thread = own_thread;
    Plant plant(options);
    std::map<RequestId, Request> sent;
    std::map<RequestId, bool> cancelled;
    const auto shared = random_prompt(260, 77);
    for (int i = 0; i < 120; ++i) {
      Request r = test_request(1 + static_cast<int64_t>(random() % 200), static_cast<uint32_t>(i),
                               1 + static_cast<int64_t>(random() % 40));
      if (random() % 2 == 0) {
        r.prompt.insert(r.prompt.begin(), shared.begin(), shared.begin() + 130);
        r.prompt.resize(std::min<size_t>(r.prompt.size(), 340));
      }
      const auto id = plant->submit(r);
      ASSERT_TRUE(id) << id.error().message;
      sent[*id] = r;
      for (uint32_t steps = random() % 4; steps > 0; --steps) {
        if (own_thread) {
          plant.collect(Engine::Milliseconds(1));
        } else {
          plant.step();
        }
      }
      if (random() % 6 == 0) {
        const RequestId victim = 1 + random() % *id;
        const bool known = plant->cancel(victim);
        cancelled[victim] = cancelled[victim] || known;
      }
    }
    if (own_thread) {
      ASSERT_TRUE(plant->drain(Engine::Milliseconds(60000)));
      plant.collect();
    } else {
      plant.run();
    }
    for (const auto& [id, r] : sent) {
      const Collected& answer = plant.answer(id);
      EXPECT_EQ(answer.ends, 1) << id;
      const auto expected = plain_answer(r).tokens;
      if (cancelled[id]) {
        EXPECT_EQ(answer.finish, FinishReason::kCancelled);
        ASSERT_LE(answer.tokens.size(), expected.size());
        EXPECT_TRUE(std::equal(answer.tokens.begin(), answer.tokens.end(), expected.begin())) << id;
      } else {
        EXPECT_EQ(answer.tokens, expected) << id;
      }
    }
    ASSERT_TRUE(plant->flush(Engine::Milliseconds(10000)));
    plant.expect_idle();
  }
}

// The same seed with rejection sampling gives other tokens of the same distribution; greedy ones
// are the same.
TEST(Engine, RejectionKeepsGreedyTokens) {
  Options options = Plant::options();
  options.drafts = "fixed:3";
  options.verification = "rejection";
  Plant plant(options);
  for (uint32_t seed = 3; seed <= 18; seed += 3) {
    const Request r = test_request(40 + seed, seed, 40);
    ASSERT_EQ(r.sampling.temperature, 0.0f);
    EXPECT_EQ(plant.run(r).tokens, plain_answer(r).tokens);
  }
  Request sampled = test_request(50, 4, 40);
  EXPECT_EQ(plant.run(sampled).tokens.size(), 40u);
  EXPECT_GT(plant->stats().accepted[0], 0);
}

TEST(Engine, SeveralAnswersShareThePrompt) {
  for (const bool cache : {true, false}) {
    Options options = Plant::options(8, 1024);
    options.prefix_cache = cache;
    Plant plant(options);
    Request r = test_request(700, 4, 12);
    r.n = 5;
    const RequestId id = *plant->submit(r);
    plant.run();
    EXPECT_EQ(plant.ended_requests(), 1);
    for (int64_t k = 0; k < 5; ++k) {
      Request alone = r;
      alone.n = 1;
      alone.sampling.seed += static_cast<uint64_t>(k);
      EXPECT_EQ(plant.answer(id, k).tokens, plain_answer(alone).tokens) << k;
      EXPECT_EQ(plant.answer(id, k).usage.cached_tokens, cache && k > 0 ? 640 : 0) << k;
    }
    const int64_t computed = plant->stats().prefill_tokens;
    EXPECT_EQ(computed, cache ? 700 + 4 * 60 : 5 * 700);
    plant.expect_idle();
  }
}

TEST(Engine, BoundedReplayGivesTheSameTokensWithAndWithoutHits) {
  for (const bool encoder : {false, true}) {
    Options options = Plant::options(8, 1200, 0, 200);
    options.replay_keep = 160;
    options.encoder_replay = encoder;
    Plant plant(options);
    Options cold = options;
    cold.prefix_cache = false;
    cold.encoder_replay = false;
    Plant alone(cold);
    const Request r = test_request(900, 8, 30);
    const Collected first = plant.run(r);
    EXPECT_EQ(first.tokens, alone.run(r).tokens);
    const Collected second = plant.run(r);
    EXPECT_EQ(second.tokens, first.tokens);  // exact windows of the encoder are there
    EXPECT_EQ(second.usage.cached_tokens, (900 - 160) / 128 * 128);
    plant.expect_idle();
  }
}

// Windows that nobody used in time are gone: one window (32 tokens here) of the hit is run
// again. What is approximate is the same for everyone and stays in its own namespace.
TEST(Engine, EncoderReplayAfterTheWindowsAreGone) {
  Options options = Plant::options(8, 1200, 0, 200);
  options.replay_keep = 160;
  options.encoder_replay = true;
  options.window_lifetime_s = 1e-6;
  options.drafts = "fixed:2";
  Plant plant(options);
  const Request r = test_request(900, 9, 30);  // greedy
  const Collected first = plant.run(r);
  EXPECT_EQ(first.usage.cached_tokens, 0);
  const Collected second = plant.run(r);
  const Collected third = plant.run(r);
  EXPECT_EQ(second.usage.cached_tokens, (900 - 160) / 128 * 128 - 32);
  EXPECT_EQ(third.usage.cached_tokens, second.usage.cached_tokens);
  EXPECT_EQ(third.tokens, second.tokens);
  EXPECT_EQ(plant->stats().cache_replays, 2);
  EXPECT_THAT(second.usage.cache_text, HasSubstr("windows of tokens 608 to 639 are recomputed"));
  plant.expect_idle();

  // Without it the same loss of windows is a miss that says so.
  options.encoder_replay = false;
  Plant strict(options);
  strict.run(r);
  const Collected again = strict.run(r);
  EXPECT_EQ(again.usage.cached_tokens, 0);
  EXPECT_EQ(again.tokens, first.tokens);
  EXPECT_THAT(again.usage.cache_text, HasSubstr("no windows"));
}

TEST(Engine, RefusalsNameTheNumbersAndHarmNobody) {
  Plant plant(Plant::options(2, 300, 4));
  const Request good = test_request(50, 1);
  const RequestId running = *plant->submit(good);
  plant.step();
  const auto refused = [&](const Request& r) {
    const auto id = plant->submit(r);
    EXPECT_FALSE(id);
    return id ? std::string() : id.error().message;
  };
  EXPECT_THAT(refused(test_request(301, 1)), HasSubstr("301"));
  EXPECT_THAT(refused(test_request(50, 1, 0)), HasSubstr("max_tokens is 0"));
  EXPECT_THAT(refused(test_request(50, 1, -3)), HasSubstr("max_tokens is -3"));
  EXPECT_THAT(refused(test_request(50, 1, int64_t{1} << 60)), HasSubstr("1152921504606846976"));
  const auto with = [](auto change) {
    Request r = test_request(5, 1);
    change(r);
    return r;
  };
  EXPECT_THAT(refused(with([](Request& r) { r.prompt[2] = 320; })), HasSubstr("token id 320"));
  EXPECT_THAT(refused(with([](Request& r) { r.prompt.clear(); })), HasSubstr("empty"));
  EXPECT_THAT(refused(with([](Request& r) { r.drafts = 4; })), HasSubstr("drafts is 4"));
  EXPECT_THAT(refused(with([](Request& r) { r.n = 0; })), HasSubstr("n is 0"));
  EXPECT_THAT(refused(with([](Request& r) { r.n = 1000000; })), HasSubstr("n is 1000000"));
  EXPECT_THAT(refused(with([](Request& r) { r.stop = {""}; })), HasSubstr("stop[0] has 0 bytes"));
  EXPECT_THAT(refused(with([](Request& r) { r.stop_tokens = {-1}; })), HasSubstr("stop_tokens"));
  EXPECT_THAT(refused(with([](Request& r) { r.timeout_ms = 0; })), HasSubstr("timeout_ms is 0"));
  EXPECT_THAT(refused(with([&](Request& r) { r.id = running; })), HasSubstr("in the engine"));
  EXPECT_THAT(refused(with([](Request& r) { r.priority = 101; })), HasSubstr("101"));
  EXPECT_FALSE(plant->cancel(999));
  EXPECT_FALSE(plant->drain(Engine::Milliseconds(0)));
  EXPECT_THAT(refused(test_request(5, 1)), HasSubstr("drain"));
  plant.run();
  EXPECT_EQ(plant.answer(running).finish, FinishReason::kCancelled);
  plant.expect_idle();
}

// Steady decoding keeps a step queued behind the one that runs. A busy machine that takes the CPU
// from the loop's thread makes a step late now and then; a loop of one step makes all of them late.
TEST(Engine, SteadyDecodingKeepsAStepQueued) {
  for (const std::string drafts : {"off", "fixed:2", "dynamic"}) {
    Options options = Plant::options();
    options.drafts = drafts;
    Plant plant(options);
    for (uint32_t seed = 1; seed <= 8; ++seed) {
      Request r = test_request(20 + seed, seed, 60);
      r.ignore_end = true;
      ASSERT_TRUE(plant->submit(r));
    }
    plant.run();
    const Stats stats = plant->stats();
    EXPECT_GT(stats.steps, 20);
    EXPECT_LT(2 * stats.late_steps, stats.steps) << drafts;
    EXPECT_GT(stats.device_busy_ms, 0);
  }
}

#ifndef NDEBUG
TEST(NoWaitDeathTest, AWaitBeforeTheNextLaunchEndsADebugBuild) {
  NoWait::about_to_wait();
  EXPECT_DEATH(
      {
        const NoWait scope;
        NoWait::about_to_wait();
      },
      "next launch");
}
#endif

}  // namespace
}  // namespace tidemill
