// Requests in a batch get the tokens they would get alone, whatever happens around them.
#include "engine/batch_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

namespace tidemill {
namespace {

using testing::HasSubstr;

struct Answer {
  std::vector<int32_t> tokens;
  BatchFinish finish = BatchFinish::kNone;
  int ends = 0;
  BatchUsage usage;
  Error error;
};

// The micro checkpoint behind a batch engine.
class Plant {
 public:
  struct Size {
    int64_t sequences = 8;
    int64_t context = 1024;
    int64_t blocks = 0;  // 0: enough for all
    int64_t chunk = 160;
  };
  explicit Plant(BatchOptions options = {}) : Plant(Size{}, std::move(options)) {}
  explicit Plant(Size size, BatchOptions options = {}) {
    RunnerOptions engine{.threads = 1,
                         .context = size.context,
                         .sequences = size.sequences,
                         .pool_blocks = size.blocks,
                         .max_step_tokens = size.chunk};
    engine_ = std::move(*ModelRunner::load(TIDEMILL_SOURCE_DIR "/tests/vectors/micro", engine));
    batch_ = std::move(*BatchEngine::create(*engine_, options));
  }

  BatchEngine& batch() { return *batch_; }
  ModelRunner& engine() { return *engine_; }
  std::map<RequestId, Answer>& answers() { return answers_; }

  bool step() {
    std::vector<BatchEvent> events;
    const auto more = batch_->step(events);
    EXPECT_TRUE(more) << (more ? "" : more.error().message);
    for (BatchEvent& event : events) {
      Answer& answer = answers_[event.id];
      EXPECT_EQ(answer.ends, 0) << "an event after the end of request " << event.id;
      answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
      answer.usage = event.usage;
      if (event.finish != BatchFinish::kNone) {
        answer.finish = event.finish;
        answer.error = event.error;
        ++answer.ends;
      }
    }
    return more && *more;
  }
  void run() {
    for (int64_t i = 0; step(); ++i) ASSERT_LT(i, 200000) << "no end";
  }
  Answer run(BatchRequest request) {
    const RequestId id = *batch_->submit(std::move(request));
    run();
    return answers_[id];
  }
  void expect_idle() {
    const BatchStats stats = batch_->stats();
    EXPECT_EQ(stats.running, 0);
    EXPECT_EQ(stats.waiting, 0);
    EXPECT_EQ(stats.free_slots, engine_->pool().slot_count());
    EXPECT_EQ(stats.free_blocks, engine_->pool().block_pool().count());
    EXPECT_EQ(engine_->pool().block_pool().pinned_count(), 0);
  }

 private:
  std::unique_ptr<ModelRunner> engine_;
  std::unique_ptr<BatchEngine> batch_;
  std::map<RequestId, Answer> answers_;
};

std::vector<int32_t> random_tokens(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& id : tokens) id = static_cast<int32_t>(3 + random() % 315);
  return tokens;
}

BatchRequest request(int64_t prompt, uint32_t seed, int64_t max_tokens = 20) {
  BatchRequest r;
  r.prompt = random_tokens(prompt, seed);
  r.max_tokens = max_tokens;
  r.sampling.temperature = seed % 3 == 0 ? 0.0f : 0.9f;
  r.sampling.top_p = 0.95f;
  r.sampling.seed = seed;
  if (seed % 5 == 0) r.sampling.repetition_penalty = 1.2f;
  return r;
}

// Alone, no prefix cache, no drafts.
std::vector<int32_t> plain(const BatchRequest& r) {
  static Plant plant(Plant::Size{.sequences = 1}, BatchOptions{.prefix_cache = false});
  return plant.run(r).tokens;
}

TEST(BatchEngine, NeighboursDraftsAndTheCacheCannotBeSeen) {
  for (const int64_t drafts : {0, 1, 3}) {
    for (const bool cache : {false, true}) {
      Plant plant(BatchOptions{.drafts = drafts, .prefix_cache = cache});
      std::vector<std::pair<RequestId, BatchRequest>> sent;
      for (uint32_t seed = 1; seed <= 12; ++seed) {
        const BatchRequest r = request(1 + seed * 37 % 300, seed);
        sent.emplace_back(*plant.batch().submit(r), r);
        plant.step();
      }
      plant.run();
      for (const auto& [id, r] : sent) {
        EXPECT_EQ(plant.answers()[id].tokens, plain(r)) << id << " drafts " << drafts;
        EXPECT_EQ(plant.answers()[id].ends, 1);
      }
      plant.expect_idle();
    }
  }
}

TEST(BatchEngine, ASecondRequestReusesThePrefixOfTheFirst) {
  Plant plant(Plant::Size{.context = 1800, .chunk = 256});
  const BatchRequest first = request(1500, 7, 4);
  const Answer cold = plant.run(first);
  EXPECT_EQ(cold.usage.cached_tokens, 0);
  const int64_t before = plant.batch().stats().prefill_tokens;
  const Answer warm = plant.run(first);
  EXPECT_EQ(warm.tokens, cold.tokens);
  EXPECT_EQ(warm.usage.cached_tokens, 1500 / 128 * 128);
  EXPECT_EQ(plant.batch().stats().prefill_tokens - before, 1500 - 1500 / 128 * 128);

  // Another tail, an answer in the prefix, and another tenant that may not see it.
  BatchRequest other = first;
  other.prompt.resize(1000);
  other.prompt.insert(other.prompt.end(), {5, 6, 7});
  EXPECT_EQ(plant.run(other).tokens, plain(other));
  BatchRequest foreign = first;
  foreign.cache_salt = "another tenant";
  const Answer apart = plant.run(foreign);
  EXPECT_EQ(apart.usage.cached_tokens, 0);
  EXPECT_EQ(apart.tokens, cold.tokens);
  plant.expect_idle();
}

// Every slot and block is used again while others run.
TEST(BatchEngine, AHitAfterTheSlotsWereRecycled) {
  Plant plant(Plant::Size{.sequences = 3, .context = 512});
  const BatchRequest first = request(320, 9);
  const auto expected = plain(first);
  EXPECT_EQ(plant.run(first).tokens, expected);
  for (uint32_t seed = 100; seed < 120; ++seed) plant.run(request(40 + seed % 50, seed, 5));
  plant.engine().pool().poison_free_memory();
  const Answer again = plant.run(first);
  EXPECT_EQ(again.tokens, expected);
  EXPECT_GT(again.usage.cached_tokens, 0);
}

// A pool far too small: requests are preempted and computed again, and nobody can tell.
TEST(BatchEngine, PreemptionCannotBeSeen) {
  for (const int64_t drafts : {0, 3}) {
    Plant plant(Plant::Size{.sequences = 8, .context = 600, .blocks = 9},
                BatchOptions{.drafts = drafts});
    std::vector<std::pair<RequestId, BatchRequest>> sent;
    for (uint32_t seed = 1; seed <= 10; ++seed) {
      const BatchRequest r = request(90 + seed * 13, seed, 120);
      sent.emplace_back(*plant.batch().submit(r), r);
    }
    plant.run();
    for (const auto& [id, r] : sent) {
      EXPECT_EQ(plant.answers()[id].tokens, plain(r)) << id;
      EXPECT_EQ(plant.answers()[id].ends, 1) << id;
    }
    EXPECT_GT(plant.batch().stats().preemptions, 0);
    plant.expect_idle();
  }
}

TEST(BatchEngine, RandomTrafficWithCancelsEndsEveryRequestOnce) {
  std::mt19937 random(3);
  Plant plant(Plant::Size{.sequences = 6, .context = 400, .blocks = 8}, BatchOptions{.drafts = 2});
  std::map<RequestId, BatchRequest> sent;
  std::map<RequestId, bool> cancelled;
  const auto shared = random_tokens(260, 77);
  for (int i = 0; i < 120; ++i) {
    BatchRequest r = request(1 + static_cast<int64_t>(random() % 200), static_cast<uint32_t>(i),
                             1 + static_cast<int64_t>(random() % 40));
    if (random() % 2 == 0) {
      r.prompt.insert(r.prompt.begin(), shared.begin(), shared.begin() + 130);
      r.prompt.resize(std::min<size_t>(r.prompt.size(), 340));
    }
    const auto id = plant.batch().submit(r);
    ASSERT_TRUE(id) << id.error().message;
    sent[*id] = r;
    for (uint32_t steps = random() % 4; steps > 0; --steps) plant.step();
    if (random() % 6 == 0) {
      const RequestId victim = 1 + random() % *id;
      const bool known = plant.batch().cancel(victim);
      cancelled[victim] = cancelled[victim] || known;
    }
  }
  plant.run();
  for (const auto& [id, r] : sent) {
    const Answer& answer = plant.answers()[id];
    EXPECT_EQ(answer.ends, 1) << id;
    const auto expected = plain(r);
    if (cancelled[id]) {
      EXPECT_EQ(answer.finish, BatchFinish::kCancelled);
      ASSERT_LE(answer.tokens.size(), expected.size());
      EXPECT_TRUE(std::equal(answer.tokens.begin(), answer.tokens.end(), expected.begin())) << id;
    } else {
      EXPECT_EQ(answer.tokens, expected) << id;
    }
  }
  plant.expect_idle();
}

TEST(BatchEngine, RefusalsNameTheNumbersAndHarmNobody) {
  Plant plant(Plant::Size{.sequences = 2, .context = 300, .blocks = 4});
  const BatchRequest good = request(50, 1);
  const RequestId running = *plant.batch().submit(good);
  plant.step();
  const auto refused = [&](const BatchRequest& r) {
    const auto id = plant.batch().submit(r);
    EXPECT_FALSE(id);
    return id ? std::string() : id.error().message;
  };
  EXPECT_THAT(refused(request(301, 1)), HasSubstr("301"));
  EXPECT_THAT(refused(request(50, 1, 0)), HasSubstr("max_tokens is 0"));
  EXPECT_THAT(refused(request(50, 1, -3)), HasSubstr("max_tokens is -3"));
  BatchRequest r = request(5, 1);
  r.prompt[2] = 320;
  EXPECT_THAT(refused(r), HasSubstr("token id 320"));
  r = request(5, 1);
  r.prompt.clear();
  EXPECT_THAT(refused(r), HasSubstr("empty"));
  r = request(5, 1);
  r.drafts = 4;
  EXPECT_THAT(refused(r), HasSubstr("drafts is 4"));
  EXPECT_FALSE(plant.batch().cancel(999));
  plant.batch().drain();
  EXPECT_THAT(refused(request(5, 1)), HasSubstr("drain"));
  plant.run();
  EXPECT_EQ(plant.answers()[running].tokens, plain(good));
  plant.expect_idle();
}

}  // namespace
}  // namespace tidemill
