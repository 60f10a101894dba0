#include "observe/recent_window.h"

#include <gtest/gtest.h>

namespace tidemill {
namespace {

const Clock::time_point kStart{std::chrono::hours(1000)};

Clock::time_point at(double seconds) {
  return kStart + std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

TEST(RecentWindow, RatesOfWholeSeconds) {
  RecentWindow window(kStart);
  window.add({.output_tokens = 30, .prompt_tokens = 9, .requests = 3}, at(0.5));
  EXPECT_EQ(window.rates(at(0.9)).output_tokens, 0);  // the first second is not over
  EXPECT_EQ(window.rates(at(1.2)).output_tokens, 30);
  window.add({.output_tokens = 60}, at(1.3));
  EXPECT_EQ(window.rates(at(1.9)).output_tokens, 30);  // the second one neither
  const RecentWindow::Rates rates = window.rates(at(3.0));
  EXPECT_EQ(rates.output_tokens, 30);
  EXPECT_EQ(rates.prompt_tokens, 3);
  EXPECT_EQ(rates.requests, 1);
  EXPECT_EQ(window.rates(at(3.0), 2).output_tokens, 30);
  EXPECT_EQ(window.rates(at(3.0), 1).output_tokens, 0);
}

TEST(RecentWindow, OldSecondsAreForgotten) {
  RecentWindow window(kStart);
  for (int second = 0; second < 200; ++second) window.add({.output_tokens = second}, at(second));
  EXPECT_EQ(window.rates(at(200), 1).output_tokens, 199);
  EXPECT_EQ(window.rates(at(200), 60).output_tokens, (140 + 199) / 2.0);
  EXPECT_EQ(window.rates(at(200), 1000).output_tokens, (140 + 199) / 2.0);
  EXPECT_EQ(window.rates(at(230), 60).output_tokens, (170 + 199) / 2.0 / 2);
  EXPECT_EQ(window.rates(at(1e6), 60).output_tokens, 0);
}

TEST(RecentWindow, LastSecondOfThePastStaysInTheRing) {
  // 60 whole seconds and the running one: the oldest must not share a place with the newest.
  RecentWindow window(kStart);
  window.add({.requests = 60}, at(0));
  window.add({.requests = 1000}, at(60));
  EXPECT_EQ(window.rates(at(60), 60).requests, 1);
  EXPECT_EQ(window.rates(at(61), 60).requests, 1000 / 60.0);
}

TEST(RecentWindow, TimeThatGoesBackCountsAsNow) {
  RecentWindow window(kStart);
  window.add({.requests = 1}, at(5));
  window.add({.requests = 1}, at(2));
  window.add({.requests = 1}, at(-9));
  EXPECT_EQ(window.rates(at(6), 1).requests, 3);
}

TEST(RecentWindow, HistoryEndsWithTheLastWholeSecond) {
  RecentWindow window(kStart);
  window.add({.output_tokens = 7}, at(1));
  window.add({.output_tokens = 8}, at(3));
  const auto history = window.history(at(3.5));
  ASSERT_EQ(history.size(), 60u);
  EXPECT_EQ(history[59].output_tokens, 0);
  EXPECT_EQ(history[58].output_tokens, 7);
  EXPECT_EQ(window.history(at(4.5))[59].output_tokens, 8);
}

}  // namespace
}  // namespace tidemill
