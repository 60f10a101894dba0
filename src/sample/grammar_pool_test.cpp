#include "sample/grammar_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "sample/grammar_for_tests.h"

namespace tidemill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Kind = GrammarSpec::Kind;
using std::chrono::milliseconds;
using Ticket = GrammarPool::Ticket;

const GrammarSpec kQuick{Kind::kRegex, "[ab]x"};
// Over the whole vocabulary of the released tokenizer: as long as it is given.
const GrammarSpec kSlow{Kind::kRegex, "(.{1,60}x){1,60}"};

GrammarCompiler slow_compiler(milliseconds compile_time) {
  static const GrammarVocabulary vocabulary = vocabulary_of(*deepseek_tokenizer());
  GrammarLimits limits;
  limits.compile_time = compile_time;
  return {vocabulary, limits, 0};
}

// A pool whose results can be waited for.
class Waited {
 public:
  Waited(GrammarCompiler& compiler, int threads, int64_t max_waiting)
      : pool_(compiler, threads, max_waiting) {
    pool_.on_done([this] {
      completions_.fetch_add(1);
      completions_.notify_all();
    });
  }
  GrammarPool* operator->() { return &pool_; }

  void wait_for_completions(int count) {
    for (int seen; (seen = completions_.load()) < count;) completions_.wait(seen);
  }
  // In the order of completion.
  std::vector<GrammarPool::Done> wait_for(size_t count) {
    std::vector<GrammarPool::Done> all;
    for (;;) {
      const int seen = completions_.load();
      for (GrammarPool::Done& done : pool_.take_done()) all.push_back(std::move(done));
      if (all.size() >= count) return all;
      completions_.wait(seen);
    }
  }

 private:
  std::atomic<int> completions_ = 0;
  GrammarPool pool_;  // its workers stop first
};

std::vector<Ticket> tickets(const std::vector<GrammarPool::Done>& all) {
  std::vector<Ticket> out;
  for (const GrammarPool::Done& done : all) out.push_back(done.ticket);
  return out;
}

TEST(GrammarPool, CompilesInOrderAndHandsOverErrors) {
  Waited pool(mini_compiler(), 1, 8);
  const Ticket good = pool->submit(kQuick).value();
  const Ticket bad = pool->submit({Kind::kRegex, "(((("}).value();
  const Ticket late = pool->submit(kQuick, Deadline::at(Clock::now())).value();
  EXPECT_EQ(pool->pending(), 3);
  const auto all = pool.wait_for(3);
  EXPECT_THAT(tickets(all), ElementsAre(good, bad, late));
  ASSERT_TRUE(all[0].grammar);
  EXPECT_TRUE(GrammarMatcher::make(*all[0].grammar, Prompt::Start::kContent));
  ASSERT_FALSE(all[1].grammar);
  EXPECT_EQ(all[1].grammar.error().code, ErrorCode::kRequest);
  ASSERT_FALSE(all[2].grammar);
  EXPECT_EQ(all[2].grammar.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(all[2].grammar.error().message, HasSubstr("time of the request"));
  EXPECT_EQ(pool->pending(), 0);
  EXPECT_TRUE(pool->take_done().empty());
}

TEST(GrammarPool, ASlowCompileHoldsUpNobodyElse) {
  GrammarCompiler compiler = slow_compiler(milliseconds(1500));
  Waited pool(compiler, 2, 8);
  const Ticket slow = pool->submit(kSlow).value();
  std::vector<Ticket> expected;
  for (int i = 0; i < 4; ++i) expected.push_back(pool->submit(kQuick).value());
  expected.push_back(slow);
  EXPECT_EQ(tickets(pool.wait_for(5)), expected);
}

TEST(GrammarPool, NobodyWaitsBeyondTheLimit) {
  GrammarCompiler compiler = slow_compiler(milliseconds(200));
  Waited pool(compiler, 1, 1);
  ASSERT_TRUE(pool->submit(kSlow));  // the worker's
  ASSERT_TRUE(pool->submit(kQuick));
  const Clock::time_point begin = Clock::now();
  const auto refused = pool->submit(kQuick);
  EXPECT_LT(seconds_since(begin), 0.1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kNoCapacity);
  EXPECT_THAT(refused.error().message, HasSubstr("2 output constraints"));
  pool.wait_for(2);
  EXPECT_TRUE(pool->submit(kQuick));
  pool.wait_for(1);

  Waited direct(compiler, 1, 0);
  EXPECT_TRUE(direct->submit(kSlow));
  EXPECT_FALSE(direct->submit(kQuick));
}

TEST(GrammarPool, ACancelledTicketIsNeverHeardOfAgain) {
  GrammarCompiler compiler = slow_compiler(milliseconds(300));
  Waited pool(compiler, 1, 8);
  const Ticket running = pool->submit(kSlow).value();
  const Ticket waiting = pool->submit(kSlow).value();
  const Ticket kept = pool->submit(kQuick).value();
  std::this_thread::sleep_for(milliseconds(50));
  pool->cancel(running);
  pool->cancel(waiting);
  pool->cancel(77);
  EXPECT_EQ(pool->pending(), 1);
  EXPECT_THAT(tickets(pool.wait_for(1)), ElementsAre(kept));

  // Compiled, but not taken yet.
  const Ticket compiled = pool->submit(kQuick).value();
  const Ticket next = pool->submit(kQuick).value();
  pool.wait_for_completions(3);
  pool->cancel(compiled);
  EXPECT_THAT(tickets(pool.wait_for(1)), ElementsAre(next));
  EXPECT_EQ(pool->pending(), 0);
}

TEST(GrammarPool, ACompileEndsAtTheDeadlineOfItsRequest) {
  GrammarCompiler compiler = slow_compiler(std::chrono::minutes(1));
  Waited pool(compiler, 1, 8);
  const Clock::time_point begin = Clock::now();
  ASSERT_TRUE(pool->submit(kSlow, Deadline::after(milliseconds(100))));
  const auto all = pool.wait_for(1);
  EXPECT_LT(seconds_since(begin), 20.0);
  ASSERT_FALSE(all[0].grammar);
  EXPECT_EQ(all[0].grammar.error().code, ErrorCode::kDeadline);
  EXPECT_THAT(all[0].grammar.error().message, HasSubstr("time of the request"));
}

TEST(GrammarPool, StopsWithoutCompilingWhatWaits) {
  GrammarCompiler compiler = slow_compiler(std::chrono::minutes(1));
  const Clock::time_point begin = Clock::now();
  {
    GrammarPool pool(compiler, 1, 1000);
    for (int i = 0; i < 300; ++i) ASSERT_TRUE(pool.submit(kSlow));
    std::this_thread::sleep_for(milliseconds(50));  // the first is being compiled
  }
  EXPECT_LT(seconds_since(begin), 5.0);  // the first alone: a minute
  GrammarPool unused(compiler, 3, 0);
}

TEST(GrammarPool, ACancelledCompileFreesItsThread) {
  GrammarCompiler compiler = slow_compiler(std::chrono::minutes(1));
  Waited pool(compiler, 1, 8);
  const Clock::time_point begin = Clock::now();
  const Ticket slow = pool->submit(kSlow).value();
  const Ticket quick = pool->submit(kQuick).value();
  std::this_thread::sleep_for(milliseconds(50));
  pool->cancel(slow);
  EXPECT_THAT(tickets(pool.wait_for(1)), ElementsAre(quick));
  EXPECT_LT(seconds_since(begin), 5.0);
}

TEST(GrammarPool, WhatIsCachedWaitsForNobody) {
  GrammarLimits limits;
  limits.compile_time = std::chrono::minutes(1);
  GrammarCompiler compiler(vocabulary_of(*deepseek_tokenizer()), limits, int64_t{64} << 20);
  const auto cached = compiler.compile(kQuick);
  ASSERT_TRUE(cached);
  std::atomic<int> calls = 0;
  GrammarPool pool(compiler, 1, 0);
  pool.on_done([&] { ++calls; });
  ASSERT_TRUE(pool.submit(kSlow));
  EXPECT_FALSE(pool.submit(kSlow));  // nothing may wait
  const Ticket ticket = pool.submit(kQuick).value();
  EXPECT_EQ(pool.pending(), 2);
  const auto done = pool.take_done();
  ASSERT_THAT(tickets(done), ElementsAre(ticket));
  EXPECT_EQ(done[0].grammar.value(), *cached);
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(pool.pending(), 1);
  // A cancelled one does not come, and one whose time is up gets no grammar.
  pool.cancel(pool.submit(kQuick).value());
  EXPECT_TRUE(pool.take_done().empty());
  EXPECT_FALSE(pool.submit(kQuick, Deadline::at(Clock::now())));
}

// For the thread sanitizer.
TEST(GrammarPool, TakesAnyThread) {
  Waited pool(mini_compiler(), 3, 1000);
  std::atomic<int> kept = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 25; ++i) {
        const auto ticket =
            pool->submit({Kind::kRegex, fmt::format("[a-z]{{{}}}", (i + t) % 5 + 1)});
        ASSERT_TRUE(ticket);
        if (i % 5 == 4) {
          pool->cancel(*ticket);
        } else {
          ++kept;
        }
        pool->pending();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto all = pool.wait_for(static_cast<size_t>(kept.load()));
  EXPECT_EQ(static_cast<int>(all.size()), kept);
  for (const GrammarPool::Done& done : all) EXPECT_TRUE(done.grammar);
  EXPECT_EQ(pool->pending(), 0);
}

}  // namespace
}  // namespace tidemill
