// The public engine on the bundled model: what callers of include/tidemill rely on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "engine/engine_for_tests.h"

namespace tidemill {
namespace {

using testing::HasSubstr;
using Kind = Constraint::Kind;
using std::chrono::milliseconds;

// --- answers

TEST(EngineApi, AnswersAreTextAndTokensOfTheSame) {
  const auto engine = open(small_options());
  Request request = ask(*engine, "The sea was calm, and");
  request.sampling.logprobs = 2;
  const Heard heard = answer(*engine, request);
  EXPECT_EQ(heard.text, engine->decode(heard.tokens));
  EXPECT_EQ(heard.usage.output_tokens, static_cast<int64_t>(heard.tokens.size()));
  EXPECT_EQ(heard.usage.prompt_tokens, static_cast<int64_t>(request.prompt.size()));
  ASSERT_EQ(heard.logprobs.size(), heard.tokens.size());
  for (size_t i = 0; i < heard.tokens.size(); ++i) {
    EXPECT_EQ(heard.logprobs[i].chosen.token, heard.tokens[i]);
    EXPECT_EQ(heard.logprobs[i].top.size(), 2u);
  }
  EXPECT_LE(heard.usage.first_token_ms, heard.usage.total_ms);

  request.ignore_end = true;
  request.max_tokens = 40;
  const Heard whole = answer(*engine, request);
  EXPECT_EQ(whole.finish, FinishReason::kLength);
  EXPECT_EQ(whole.tokens.size(), 40u);

  request.stop_tokens = {whole.tokens[3]};
  const Heard stopped = answer(*engine, request);
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  EXPECT_LE(stopped.tokens.size(), 3u);
}

TEST(EngineApi, AStopStringEndsTheTextBeforeIt) {
  const auto engine = open(small_options());
  Request request = ask(*engine, "Once upon a time", 60);
  request.ignore_end = true;
  const Heard whole = answer(*engine, request);
  ASSERT_GT(whole.text.size(), 30u);
  const std::string stop = whole.text.substr(20, 5);
  request.stop = {"never to be found", stop};
  const Heard stopped = answer(*engine, request);
  EXPECT_EQ(stopped.finish, FinishReason::kStop);
  EXPECT_EQ(stopped.text, whole.text.substr(0, whole.text.find(stop)));
  EXPECT_LT(stopped.tokens.size(), whole.tokens.size());
}

TEST(EngineApi, ThreadsSubmitAndCancelWhileOneListens) {
  constexpr int kThreads = 4;
  constexpr int kEach = 8;
  const auto engine = open(small_options());
  std::vector<std::vector<int32_t>> expected;
  for (int i = 0; i < kEach; ++i)
    expected.push_back(answer(*engine, ask(*engine, prompt_of(i))).tokens);

  std::mutex mutex;
  std::map<RequestId, int> prompts;
  std::set<RequestId> cancelled;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const auto id = engine->submit(ask(*engine, prompt_of(i)));
        ASSERT_TRUE(id) << id.error().message;
        const bool cancels = (i + t) % 3 == 0;
        {
          const std::lock_guard lock(mutex);
          prompts[*id] = i;
          if (cancels) cancelled.insert(*id);
        }
        std::this_thread::sleep_for(milliseconds(3 * t));
        if (cancels) engine->cancel(*id);
        engine->stats();
      }
    });
  }
  Listener listener(*engine);
  listener.wait_for(kThreads * kEach);
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(prompts.size(), static_cast<size_t>(kThreads * kEach));
  for (const auto& [id, i] : prompts) {
    const Heard& heard = listener.of(id);
    std::vector<int32_t> begin = expected[static_cast<size_t>(i)];
    if (heard.finish == FinishReason::kCancelled) {
      EXPECT_TRUE(cancelled.contains(id));
      ASSERT_LE(heard.tokens.size(), begin.size());
      begin.resize(heard.tokens.size());
    }
    EXPECT_EQ(heard.tokens, begin);
  }
  EXPECT_TRUE(engine->flush(kLong));
  const Stats stats = engine->stats();
  EXPECT_EQ(stats.submitted, stats.finished);
  EXPECT_EQ(stats.running + stats.waiting, 0);
  EXPECT_EQ(stats.free_slots, stats.slots);
  engine->clear_cache();
  EXPECT_EQ(engine->stats().free_blocks, engine->stats().pool_blocks);
}

TEST(EngineApi, TheCallerMayTurnTheLoop) {
  const auto threaded = open(small_options());
  Options options = small_options();
  options.own_thread = false;
  const auto stepped = open(options);
  EXPECT_EQ(threaded->step().error().code, ErrorCode::kConflictingOptions);
  const auto idle = stepped->step(milliseconds(0));
  ASSERT_TRUE(idle);
  EXPECT_FALSE(*idle);

  Listener listener(*stepped, true);
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(submit(*stepped, ask(*stepped, prompt_of(i))));
  ids.push_back(submit(*stepped, constrained(*stepped, Kind::kRegex, "[ab]{5}")));
  EXPECT_TRUE(stepped->poll(milliseconds(50)).empty());  // nothing happens by itself
  listener.wait_for(ids.size());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(listener.of(ids[static_cast<size_t>(i)]).tokens,
              answer(*threaded, ask(*threaded, prompt_of(i))).tokens);
  }
  EXPECT_EQ(listener.of(ids[4]).text.size(), 5u);
  EXPECT_TRUE(stepped->flush(kLong));
  EXPECT_TRUE(stepped->drain(kLong));
}

TEST(EngineApi, ChoicesShareThePromptAndDrawOnTheirOwn) {
  Options options = small_options();
  options.max_step_tokens = 2048;  // all of them would fit into the first step
  const auto engine = open(options);
  for (const bool regex : {false, true}) {
    Request request = ask(*engine, long_prompt() + (regex ? "!" : "?"));
    if (regex) request.constraint = Constraint{.kind = Kind::kRegex, .text = "[a-z ]{20}"};
    ASSERT_GT(request.prompt.size(), 300u);
    request.n = 4;
    Listener listener(*engine);
    const RequestId id = submit(*engine, request);
    listener.wait_for(1);
    ASSERT_EQ(listener.choices(id), 4u);
    engine->clear_cache();

    request.n = 1;
    std::set<std::vector<int32_t>> different;
    for (int64_t k = 0; k < 4; ++k) {
      const Heard& heard = listener.of(id, k);
      EXPECT_GE(heard.usage.cached_tokens, k > 0 ? 256 : 0) << heard.usage.cache_text;
      EXPECT_EQ(heard.tokens, answer(*engine, request).tokens) << k;
      different.insert(heard.tokens);
      ++request.sampling.seed;
    }
    EXPECT_GT(different.size(), 1u);
    engine->clear_cache();
  }
}

// --- the end

TEST(EngineApi, AConversationFindsWhatItHasSaidSoFar) {
  const auto engine = open(small_options());
  Request request = ask(*engine, long_prompt(), 140);
  request.ignore_end = true;
  const Heard first = answer(*engine, request);
  request.prompt.insert(request.prompt.end(), first.tokens.begin(), first.tokens.end());
  const auto said = static_cast<int64_t>(request.prompt.size());
  for (const int32_t token : engine->encode(" And then?")) request.prompt.push_back(token);
  const Heard second = answer(*engine, request);
  // All whole blocks but perhaps the last: the answer's last token was never computed.
  EXPECT_GE(second.usage.cached_tokens, said - 2 * 128) << second.usage.cache_text;
  EXPECT_EQ(engine->stats().cache_hits, 1);
  engine->clear_cache();
  EXPECT_EQ(answer(*engine, request).tokens, second.tokens);
}

TEST(EngineApi, DrainingLetsRequestsEndAndTakesNoMore) {
  const auto engine = open(small_options());
  Listener listener(*engine);
  Request request = ask(*engine, prompt_of(0), 150);
  request.ignore_end = true;
  const RequestId running = submit(*engine, request);
  std::thread drain([&] { EXPECT_TRUE(engine->drain(kLong)); });
  Error error;
  for (int i = 0; i < 1000 && error.message.empty(); ++i) {
    request.max_tokens = 1;
    auto id = engine->submit(request);
    if (!id) error = id.error();
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(error.code, ErrorCode::kNoCapacity) << error.message;
  EXPECT_THAT(error.message, HasSubstr("drain"));
  drain.join();
  listener.wait_for(static_cast<size_t>(engine->stats().submitted));
  EXPECT_EQ(listener.of(running).tokens.size(), 150u);
  EXPECT_TRUE(engine->drain(milliseconds(0)));
}

TEST(EngineApi, DrainingCancelsWhatTakesTooLong) {
  for (const bool own_thread : {true, false}) {
    Options options = small_options();
    options.own_thread = own_thread;
    options.sequences = 1;
    options.grammar_compile_ms = 1000;
    const auto engine = open(options);
    Listener listener(*engine, !own_thread);
    std::vector<RequestId> ids;
    for (int i = 0; i < 3; ++i) {  // one runs, one waits, one is being compiled
      Request request = ask(*engine, prompt_of(i), 1900);
      request.ignore_end = true;
      if (i == 2) request.constraint = Constraint{.kind = Kind::kRegex, .text = kSlowRegex};
      ids.push_back(submit(*engine, std::move(request)));
    }
    const Clock::time_point begin = Clock::now();
    const Status drained = engine->drain(milliseconds(200));
    EXPECT_LT(seconds_since(begin), 5.0);
    ASSERT_FALSE(drained);
    EXPECT_EQ(drained.error().code, ErrorCode::kDeadline);
    EXPECT_THAT(drained.error().message, HasSubstr("3 requests"));
    listener.wait_for(3);
    for (const RequestId id : ids) {
      EXPECT_EQ(listener.of(id).finish, FinishReason::kCancelled);
      EXPECT_FALSE(engine->cancel(id));
    }
    EXPECT_TRUE(engine->flush(kLong));
    EXPECT_EQ(engine->stats().free_slots, engine->stats().slots);
  }
}

TEST(EngineApi, AnEngineMayBeClosedWithWorkInIt) {
  Options options = small_options();
  options.grammar_compile_ms = 500;
  const auto engine = open(options);
  for (int i = 0; i < 12; ++i) submit(*engine, ask(*engine, prompt_of(i), 1000));
  submit(*engine, constrained(*engine, Kind::kRegex, kSlowRegex));
  engine->poll(milliseconds(100));
}
}  // namespace
}  // namespace tidemill
