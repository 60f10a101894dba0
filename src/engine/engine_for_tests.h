// What the tests of the public engine share. Included by tests only.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "tidemill/engine.h"

namespace tidemill {

inline const char* const kMiniModel = TIDEMILL_SOURCE_DIR "/models/mini";
inline constexpr std::chrono::milliseconds kLong{120'000};
// Longer to compile than anybody waits.
inline const char* const kSlowRegex = "(.{1,120}x){1,120}";

inline Options small_options() {
  Options options;
  options.model = kMiniModel;
  options.context = 2048;
  options.sequences = 8;
  options.max_step_tokens = 128;
  return options;
}

inline std::unique_ptr<Engine> open(const Options& options) {
  auto engine = Engine::open(options);
  EXPECT_TRUE(engine) << engine.error().message;
  return engine ? *std::move(engine) : nullptr;
}

inline Request ask(const Engine& engine, std::string_view prompt, int64_t max_tokens = 24) {
  Request request;
  request.prompt = engine.encode(prompt);
  request.max_tokens = max_tokens;
  request.sampling.seed = 7;
  return request;
}

inline Request constrained(const Engine& engine, Constraint::Kind kind, std::string text,
                           int64_t max_tokens = 150) {
  Request request = ask(engine, "The answer is:", max_tokens);
  request.constraint = Constraint{.kind = kind, .text = std::move(text)};
  return request;
}

inline RequestId submit(Engine& engine, Request request) {
  const auto id = engine.submit(std::move(request));
  EXPECT_TRUE(id) << id.error().message;
  return id.value_or(0);
}

inline Error refusal(Engine& engine, Request request) {
  const auto id = engine.submit(std::move(request));
  EXPECT_FALSE(id);
  return id ? Error{} : id.error();
}

struct Heard {
  std::vector<int32_t> tokens;
  std::string text;
  std::vector<LogProbabilities> logprobs;
  FinishReason finish = FinishReason::kNone;
  Error error;
  Usage usage;
};

// Collects events and checks their order: nothing follows an end, every choice ends once.
class Listener {
 public:
  explicit Listener(Engine& engine, bool steps = false) : engine_(engine), steps_(steps) {}

  // Until so many requests in all have ended.
  void wait_for(size_t requests) {
    const Deadline deadline = Deadline::after(kLong);
    while (ended_.size() < requests && !deadline.expired()) {
      if (steps_) {
        const auto worked = engine_.step();
        ASSERT_TRUE(worked) << worked.error().message;
      }
      for (const Event& event :
           engine_.poll(steps_ ? std::chrono::milliseconds(0) : std::chrono::milliseconds(100))) {
        take(event);
      }
    }
    ASSERT_GE(ended_.size(), requests);
  }
  const Heard& of(RequestId id, int64_t choice = 0) { return heard_[id][choice]; }
  size_t choices(RequestId id) { return heard_[id].size(); }

 private:
  void take(const Event& event) {
    Heard& heard = heard_[event.id][event.choice];
    ASSERT_EQ(heard.finish, FinishReason::kNone) << event.id << " goes on after its end";
    ASSERT_FALSE(ended_.contains(event.id));
    heard.tokens.insert(heard.tokens.end(), event.tokens.begin(), event.tokens.end());
    heard.logprobs.insert(heard.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    heard.text += event.text;
    heard.finish = event.finish;
    if (event.finish != FinishReason::kNone) {
      heard.error = event.error;
      heard.usage = event.usage;
    }
    if (!event.last) return;
    ended_.insert(event.id);
    for (const auto& [choice, one] : heard_[event.id]) {
      EXPECT_NE(one.finish, FinishReason::kNone) << event.id << ": choice " << choice;
    }
  }

  Engine& engine_;
  bool steps_;
  std::map<RequestId, std::map<int64_t, Heard>> heard_;
  std::set<RequestId> ended_;
};

inline Heard answer(Engine& engine, Request request) {
  Listener listener(engine);
  const RequestId id = submit(engine, std::move(request));
  listener.wait_for(1);
  return listener.of(id);
}

inline std::string prompt_of(int i) { return fmt::format("Story {} about the sea and a mill:", i); }

inline std::string long_prompt() {
  std::string text;
  for (int i = 0; i < 60; ++i) text += prompt_of(i) + " ";
  return text;
}

}  // namespace tidemill
