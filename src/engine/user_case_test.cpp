// Bugs that users of other engines have met, as tests of the whole engine: answers that change with
// repetition, with neighbours, with preemption. Numbers are those of docs/user-cases.md, which says
// where the other cases are tested.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "engine/test_plant.h"

namespace tidemill {
namespace {

using testing::HasSubstr;

Request greedy_request(int64_t prompt, uint32_t seed, int64_t max_tokens) {
  Request r;
  r.prompt = random_prompt(prompt, seed);
  r.max_tokens = max_tokens;
  r.sampling.temperature = 0;
  r.ignore_end = true;
  return r;
}

bool same_bits(const TokenLogprob& a, const TokenLogprob& b) {
  return a.token == b.token && std::memcmp(&a.logprob, &b.logprob, sizeof(float)) == 0;
}
bool same_bits(const std::vector<LogProbabilities>& a, const std::vector<LogProbabilities>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return same_bits(x.chosen, y.chosen) &&
           std::equal(x.top.begin(), x.top.end(), y.top.begin(), y.top.end(),
                      [](const auto& s, const auto& t) { return same_bits(s, t); });
  });
}

// Case 15: the same greedy request 50 times, then 50 times among others that are aborted at random.
TEST(UserCase, TheHundredthAnswerIsTheFirst) {
  Request r = greedy_request(150, 15, 12);
  r.sampling.logprobs = 1;
  const Collected expected = plain_answer(r);
  ASSERT_EQ(expected.logprobs.size(), 12u);
  for (const int64_t slots : {1, 8}) {
    for (const bool cache : {true, false}) {
      Options options = Plant::options(slots, 300);
      options.prefix_cache = cache;
      Plant plant(options);
      std::vector<RequestId> ids;
      for (int i = 0; i < 50; ++i) {
        ids.push_back(*plant->submit(r));
        if (i % 3 == 0) plant.run();
      }
      std::mt19937 random(15);
      for (int i = 0; i < 50; ++i) {
        const auto others = static_cast<uint32_t>(random());
        const RequestId other = *plant->submit(test_request(1 + others % 200, others, 40));
        for (uint32_t turns = random() % 4; turns > 0; --turns) plant.step();
        ids.push_back(*plant->submit(r));
        for (uint32_t turns = random() % 8; turns > 0; --turns) plant.step();
        plant->cancel(other);
      }
      plant.run();
      for (size_t i = 0; i < ids.size(); ++i) {
        const Collected& answer = plant.answer(ids[i]);
        EXPECT_TRUE(answer.tokens == expected.tokens &&
                    same_bits(answer.logprobs, expected.logprobs))
            << "number " << i + 1 << " on " << slots << " slots, cache " << cache;
      }
      EXPECT_EQ(plant->stats().cache_hits >= 99, cache);
      plant.expect_idle();
    }
  }
}

// Case 25: one prompt alone and in batches up to 64, with chunks from the smallest to the largest,
// with and without drafts: the same tokens, and log-probabilities that are equal bit for bit.
TEST(UserCase, LogProbabilitiesDoNotDependOnTheBatch) {
  struct Batch {
    int64_t size;
    int64_t chunk;
    const char* drafts;
    int threads = 1;
  };
  const Batch batches[] = {{1, 33, "off"},     {1, 512, "fixed:3"},     {2, 34, "fixed:2"},
                           {3, 64, "dynamic"}, {5, 128, "off", 2},      {8, 40, "fixed:3"},
                           {16, 48, "off"},    {33, 100, "fixed:1"},    {64, 96, "dynamic-lagged"},
                           {64, 400, "off"},   {64, 2048, "fixed:3", 2}};
  std::vector<Request> watched;
  for (const float temperature : {0.0f, 0.8f}) {
    watched.push_back(greedy_request(203, 25, 16));
    watched.back().sampling.temperature = temperature;
    watched.back().sampling.seed = 25;
    watched.back().sampling.logprobs = 20;
  }
  std::vector<Collected> alone;
  for (const Request& r : watched) alone.push_back(plain_answer(r));
  ASSERT_EQ(alone[0].logprobs.size(), 16u);
  for (const Batch& batch : batches) {
    Options options = Plant::options(batch.size, 256, 0, batch.chunk);
    options.drafts = batch.drafts;
    options.threads = batch.threads;
    options.prefix_cache = false;
    Plant plant(options);
    std::vector<RequestId> ids;
    for (uint32_t i = 0; i < batch.size; ++i) {
      if (i == batch.size / 2) {
        for (const Request& r : watched) ids.push_back(*plant->submit(r));
      }
      if (i < 2) continue;
      EXPECT_TRUE(plant->submit(test_request(1 + i * 31 % 150, 1000 + i, 30)));
    }
    plant.run();
    for (size_t i = 0; i < watched.size(); ++i) {
      const Collected& answer = plant.answer(ids[i]);
      EXPECT_EQ(answer.tokens, alone[i].tokens) << batch.size << " in steps of " << batch.chunk;
      EXPECT_TRUE(same_bits(answer.logprobs, alone[i].logprobs))
          << batch.size << " in steps of " << batch.chunk << ", drafts " << batch.drafts;
    }
  }
}

// Cases 20 and 28: a request makes way for urgent ones, twice in prefill and then in decode, each
// time with a step in flight; and no more than the three times that it may. Urgent ones start
// within a stated number of turns of the loop.
TEST(UserCase, PreemptedInPrefillAndInDecodeNoTokenIsLostOrRepeated) {
  constexpr int64_t kTurnsToStart = 6;
  for (const std::string drafts : {"off", "fixed:3", "dynamic"}) {
    for (const int64_t suspend_bytes : {int64_t{0}, int64_t{64} << 20}) {
      SCOPED_TRACE(drafts + (suspend_bytes > 0 ? ", to the host" : ", computed again"));
      Options options = Plant::options(2, 900, 0, 48);
      options.drafts = drafts;
      options.suspend_bytes = suspend_bytes;
      Plant plant(options);
      // A neighbour whom nobody interrupts.
      Request neighbour = greedy_request(40, 20, 600);
      neighbour.priority = -100;
      const RequestId beside = *plant->submit(neighbour);
      Request r = test_request(600, suspend_bytes > 0 ? 22 : 21, 60);
      r.ignore_end = true;
      r.priority = 5;
      const RequestId victim = *plant->submit(r);

      const auto interrupt = [&](uint32_t seed) {
        Request urgent = greedy_request(20, seed, 2);
        urgent.priority = -1;
        const int64_t before = plant->stats().preemptions;
        const RequestId id = *plant->submit(urgent);
        int64_t turns = 0;
        for (; plant.answer(id).tokens.empty() && turns < 100; ++turns) plant.step();
        EXPECT_LE(turns, kTurnsToStart);
        EXPECT_EQ(plant->stats().preemptions - before, 1);
        EXPECT_EQ(plant.answer(victim).ends, 0);
        while (plant.answer(id).ends == 0) plant.step();
        EXPECT_EQ(plant.answer(id).tokens, plain_answer(urgent).tokens);
      };
      for (const int64_t computed : {200, 450}) {  // tokens of both prompts
        while (plant->stats().prefill_tokens < computed) plant.step();
        interrupt(static_cast<uint32_t>(computed));
        EXPECT_TRUE(plant.answer(victim).tokens.empty()) << "preempted in decode";
      }
      while (plant.answer(victim).tokens.size() < 8) plant.step();
      interrupt(3);
      const size_t decoded = plant.answer(victim).tokens.size();
      EXPECT_LT(decoded, 60u);
      // A fourth one waits for its turn.
      while (plant.answer(victim).tokens.size() < decoded + 4) plant.step();
      Request late = greedy_request(20, 4, 2);
      late.priority = -1;
      const RequestId last = *plant->submit(late);
      plant.run();
      EXPECT_EQ(plant.answer(last).tokens, plain_answer(late).tokens);

      EXPECT_EQ(plant.answer(victim).usage.preemptions, 3);
      EXPECT_EQ(plant->stats().preemptions, 3);
      EXPECT_EQ(plant->stats().suspends > 0, suspend_bytes > 0);
      EXPECT_EQ(plant.answer(victim).tokens, plain_answer(r).tokens);
      EXPECT_EQ(plant.answer(beside).tokens, plain_answer(neighbour).tokens);
      EXPECT_EQ(plant.answer(beside).usage.preemptions, 0);
      plant.expect_idle();
    }
  }
}

// Case 20, among equals: a pool of a third of what is wanted. The one that came first is never
// preempted, the others not more often than stated.
TEST(UserCase, AmongEqualsPreemptionsAreFew) {
  constexpr int64_t kMostOfOne = 2;
  constexpr int64_t kMostInAll = 7;
  for (const std::string drafts : {"off", "fixed:3"}) {
    Options options = Plant::options(12, 400, 9);
    options.drafts = drafts;
    Plant plant(options);
    std::vector<std::pair<RequestId, Request>> sent;
    for (uint32_t i = 0; i < 12; ++i) {
      const Request r = greedy_request(60 + 13 * i, 200 + i, 150);
      sent.emplace_back(*plant->submit(r), r);
    }
    plant.run();
    for (const auto& [id, r] : sent) {
      EXPECT_EQ(plant.answer(id).tokens, plain_answer(r).tokens) << id;
      EXPECT_LE(plant.answer(id).usage.preemptions, kMostOfOne) << id;
    }
    EXPECT_EQ(plant.answer(sent[0].first).usage.preemptions, 0);
    EXPECT_GT(plant->stats().preemptions, 0);
    EXPECT_LE(plant->stats().preemptions, kMostInAll);
    plant.expect_idle();
  }
}

// Case 27: a prompt that is larger than the pool is refused at once, and small ones behind it
// start.
TEST(UserCase, APromptLargerThanThePoolHoldsUpNobody) {
  Plant plant(Plant::options(16, 2048, 8));
  const auto large = plant->submit(greedy_request(1025, 27, 1));
  ASSERT_FALSE(large);
  EXPECT_EQ(large.error().code, ErrorCode::kContextLength);
  EXPECT_THAT(large.error().message, HasSubstr("9 blocks"));
  EXPECT_THAT(large.error().message, HasSubstr("has 8"));
  std::vector<RequestId> ids;
  for (uint32_t i = 0; i < 8; ++i) ids.push_back(*plant->submit(greedy_request(5, 270 + i, 4)));
  while (plant.step() && plant->stats().steps < 1) {
  }
  for (const RequestId id : ids) EXPECT_FALSE(plant.answer(id).tokens.empty()) << id;
  plant.run();
  plant.expect_idle();
}

}  // namespace
}  // namespace tidemill
