#include "base/thread_team.h"

#include <gmock/gmock.h>

#include <chrono>
#include <numeric>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace tidemill {
namespace {

// One thread, as many as a small machine has, and more than it has.
class ThreadTeamOf : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, ThreadTeamOf, testing::Values(1, 2, 3, 8));

TEST_P(ThreadTeamOf, RunsEveryRankOnceWithTheCallerAsRankZero) {
  ThreadTeam team(GetParam());
  ASSERT_EQ(team.size(), GetParam());
  std::vector<int> calls(static_cast<size_t>(team.size()));
  std::vector<std::thread::id> ids(calls.size());
  team.run([&](int rank, int size) {
    EXPECT_EQ(size, GetParam());
    ++calls[static_cast<size_t>(rank)];
    ids[static_cast<size_t>(rank)] = std::this_thread::get_id();
  });
  EXPECT_THAT(calls, testing::Each(1));
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), ids.size());
}

// Many short runs with plain memory handed from rank to rank: a missing barrier or a lost wake-up
// fails here, by a wrong sum, a hang, or a report of ThreadSanitizer.
TEST_P(ThreadTeamOf, RunsSeeEachOthersWrites) {
  ThreadTeam team(GetParam());
  const auto n = static_cast<size_t>(team.size());
  std::vector<int64_t> a(n, 1);
  std::vector<int64_t> b(n, 0);
  for (int round = 0; round < 2000; ++round) {
    team.run([&](int rank, int) {
      const auto r = static_cast<size_t>(rank);
      b[r] = a[(r + 1) % n] + 1;
    });
    std::swap(a, b);
  }
  EXPECT_THAT(a, testing::Each(2001));
}

TEST_P(ThreadTeamOf, WakesAfterSleep) {
  ThreadTeam team(GetParam());
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than the spin
    std::atomic<int> sum = 0;
    team.run([&](int rank, int size) {
      if (rank == size - 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      sum += rank + 1;
    });
    EXPECT_EQ(sum, GetParam() * (GetParam() + 1) / 2);
  }
}

TEST_P(ThreadTeamOf, ParallelForCoversTheRangeOnce) {
  ThreadTeam team(GetParam());
  for (const int64_t n : {0, 1, 2, 7, 8, 9, 64, 1000}) {
    for (const int64_t grain : {1, 3, 8, 4096}) {
      std::vector<int> visits(static_cast<size_t>(n));
      team.parallel_for(n, grain, [&](int64_t begin, int64_t end) {
        EXPECT_LT(begin, end);
        EXPECT_EQ(begin % grain, 0);
        for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
      });
      EXPECT_THAT(visits, testing::Each(1)) << n << " by " << grain;
    }
  }
}

TEST(ThreadTeam, PartsAreTheSameEveryTime) {
  ThreadTeam team(2);
  for (int round = 0; round < 100; ++round) {
    std::vector<std::pair<int64_t, int64_t>> parts(2);
    team.parallel_for(21, 4, [&](int64_t begin, int64_t end) {
      parts[begin == 0 ? 0 : 1] = {begin, end};
    });
    EXPECT_THAT(parts, testing::ElementsAre(std::pair(0, 12), std::pair(12, 21)));
  }
}

TEST(ThreadTeam, ParallelForTakesHugeRanges) {
  ThreadTeam team(2);
  std::atomic<int64_t> covered = 0;
  const int64_t n = INT64_MAX - 1;
  team.parallel_for(n, int64_t{1} << 40,
                    [&](int64_t begin, int64_t end) { covered += end - begin; });
  EXPECT_EQ(covered, n);
}

TEST(ThreadTeam, SizeIsClamped) {
  EXPECT_EQ(ThreadTeam(0).size(), 1);
  EXPECT_EQ(ThreadTeam(-5).size(), 1);
}

TEST(ThreadTeam, TwoTeamsWorkSideBySide) {
  std::vector<std::thread> callers;
  std::atomic<int> calls = 0;
  for (int caller = 0; caller < 2; ++caller) {
    callers.emplace_back([&] {
      ThreadTeam team(3);
      for (int round = 0; round < 500; ++round) team.run([&](int, int) { ++calls; });
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(calls, 2 * 500 * 3);
}

#ifndef NDEBUG
TEST(ThreadTeamDeathTest, NestedRunIsAProgrammersError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ThreadTeam team(2);
        team.run([&](int, int) { team.run([](int, int) {}); });
      },
      "must not start another run");
}
#endif

}  // namespace
}  // namespace tidemill
