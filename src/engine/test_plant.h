// The micro checkpoint behind an engine, and answers collected from its events.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tidemill/engine.h"

namespace tidemill {

struct Collected {
  std::vector<int32_t> tokens;
  std::string text;
  std::vector<LogProbabilities> logprobs;
  FinishReason finish = FinishReason::kNone;
  int ends = 0;
  Usage usage;
  Error error;
};

// Turned by the test (own_thread off) unless the options say otherwise.
class Plant {
 public:
  static Options options(int64_t sequences = 8, int64_t context = 1024, int64_t blocks = 0,
                         int64_t chunk = 160) {
    Options o;
    o.model = TIDEMILL_SOURCE_DIR "/tests/vectors/micro";
    o.threads = 1;
    o.context = context;
    o.sequences = sequences;
    o.pool_blocks = blocks;
    o.max_step_tokens = chunk;
    o.own_thread = false;
    return o;
  }

  explicit Plant(Options o = options()) : own_thread_(o.own_thread) {
    auto engine = Engine::open(o);
    EXPECT_TRUE(engine) << (engine ? "" : engine.error().message);
    engine_ = std::move(*engine);
  }

  Engine& engine() { return *engine_; }
  Engine* operator->() { return engine_.get(); }
  std::map<std::pair<RequestId, int64_t>, Collected>& answers() { return answers_; }
  Collected& answer(RequestId id, int64_t choice = 0) { return answers_[{id, choice}]; }

  void collect(Engine::Milliseconds wait = Engine::Milliseconds(0)) {
    for (Event& event : engine_->poll(wait)) {
      Collected& answer = answers_[{event.id, event.choice}];
      EXPECT_EQ(answer.ends, 0) << "an event after the end of request " << event.id;
      answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
      answer.text += event.text;
      std::move(event.logprobs.begin(), event.logprobs.end(), std::back_inserter(answer.logprobs));
      if (event.finish == FinishReason::kNone) continue;
      answer.finish = event.finish;
      answer.error = event.error;
      answer.usage = event.usage;
      ++answer.ends;
      if (event.last) ++ended_requests_;
    }
  }
  int64_t ended_requests() const { return ended_requests_; }

  bool step() {
    const auto busy = engine_->step();
    EXPECT_TRUE(busy) << (busy ? "" : busy.error().message);
    collect();
    return busy && *busy;
  }
  // Until nothing is left to do.
  void run() {
    for (int64_t i = 0;; ++i) {
      ASSERT_LT(i, 1000000) << "no end";
      if (step()) continue;
      const Stats stats = engine_->stats();
      if (stats.running + stats.waiting == 0) return;
      std::this_thread::sleep_for(Engine::Milliseconds(1));
    }
  }
  Collected run(Request request) {
    const auto id = engine_->submit(std::move(request));
    EXPECT_TRUE(id) << (id ? "" : id.error().message);
    if (!id) return {};
    run();
    return answer(*id);
  }
  void expect_idle() {
    const Stats stats = engine_->stats();
    EXPECT_EQ(stats.running, 0);
    EXPECT_EQ(stats.waiting, 0);
    EXPECT_EQ(stats.submitted, stats.finished);
    EXPECT_EQ(stats.free_slots, stats.slots);
    EXPECT_EQ(stats.free_blocks, stats.pool_blocks);
    EXPECT_EQ(stats.suspended_bytes, 0);
  }

 private:
  bool own_thread_;
  std::unique_ptr<Engine> engine_;
  std::map<std::pair<RequestId, int64_t>, Collected> answers_;
  int64_t ended_requests_ = 0;
};

inline std::vector<int32_t> random_prompt(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& id : tokens) id = static_cast<int32_t>(3 + random() % 315);
  return tokens;
}

// Greedy or sampled, with and without penalties, as the seed says.
inline Request test_request(int64_t prompt, uint32_t seed, int64_t max_tokens = 20) {
  Request r;
  r.prompt = random_prompt(prompt, seed);
  r.max_tokens = max_tokens;
  r.sampling.temperature = seed % 3 == 0 ? 0.0f : 0.9f;
  r.sampling.top_p = 0.95f;
  r.sampling.seed = seed;
  if (seed % 5 == 0) r.sampling.repetition_penalty = 1.2f;
  return r;
}

// Alone, no prefix cache, no drafts: the same program at its plainest.
inline Collected plain_answer(const Request& request) {
  static Plant plant([] {
    Options o = Plant::options(1, 2048);
    o.prefix_cache = false;
    return o;
  }());
  return plant.run(request);
}

}  // namespace tidemill
