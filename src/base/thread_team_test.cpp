#include "base/thread_team.h"

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace tidemill {
namespace {

// One thread, as many as a small machine has, and more than it has.
class ThreadTeamOf : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, ThreadTeamOf, testing::Values(1, 2, 3, 8));

constexpr std::chrono::seconds kLong{60};

// Returns whether the condition came true in time.
template <typename Condition>
bool wait_until(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kLong;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST_P(ThreadTeamOf, RunsEveryRankOnceThatComesInTime) {
  ThreadTeam team(GetParam());
  ASSERT_EQ(team.size(), GetParam());
  std::vector<int> calls(static_cast<size_t>(team.size()));
  std::vector<std::thread::id> ids(calls.size());
  std::atomic<int> here = 0;
  team.run([&](int rank, int size) {
    EXPECT_EQ(size, GetParam());
    ++calls[static_cast<size_t>(rank)];
    ids[static_cast<size_t>(rank)] = std::this_thread::get_id();
    ++here;
    if (rank == 0) {
      EXPECT_TRUE(wait_until([&] { return here == size; }));
    }
  });
  EXPECT_THAT(calls, testing::Each(1));
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), ids.size());
}

// Every unit is done once, whoever came to help.
TEST_P(ThreadTeamOf, ARunIsDoneWhenItsUnitsAre) {
  ThreadTeam team(GetParam());
  std::vector<std::atomic<int>> done(100);
  for (int round = 0; round < 200; ++round) {
    std::atomic<size_t> next = 0;
    team.run([&](int, int) {
      for (size_t unit; (unit = next.fetch_add(1)) < done.size();) ++done[unit];
    });
    for (const auto& count : done) ASSERT_EQ(count, round + 1);
  }
}

// Who has begun is waited for, however long it takes.
TEST_P(ThreadTeamOf, ARunWaitsForThreadsThatHaveBegun) {
  ThreadTeam team(GetParam());
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than the spin
    std::atomic<int> begun = 0;
    std::atomic<int> ended = 0;
    team.run([&](int rank, int size) {
      ++begun;
      if (rank == 0) {
        EXPECT_TRUE(wait_until([&] { return begun == size; }));
      }
      if (rank == size - 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++ended;
    });
    EXPECT_EQ(ended, GetParam());
  }
}

// Many short runs with plain memory handed on from run to run: a missing barrier or a lost wake-up
// fails here, by a wrong sum, a hang, or a report of ThreadSanitizer.
TEST_P(ThreadTeamOf, RunsSeeEachOthersWrites) {
  ThreadTeam team(GetParam());
  constexpr int64_t kElements = 12;
  std::vector<int64_t> a(kElements, 1);
  std::vector<int64_t> b(kElements, 0);
  for (int round = 0; round < 5000; ++round) {
    team.parallel_for(kElements, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        b[static_cast<size_t>(i)] = a[static_cast<size_t>((i + 1) % kElements)] + 1;
      }
    });
    std::swap(a, b);
  }
  EXPECT_THAT(a, testing::Each(5001));
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
    std::mutex mutex;
    std::set<std::pair<int64_t, int64_t>> parts;
    team.parallel_for(29, 4, [&](int64_t begin, int64_t end) {
      const std::lock_guard lock(mutex);
      parts.insert({begin, end});
    });
    using Part = std::pair<int64_t, int64_t>;
    EXPECT_THAT(parts, testing::ElementsAre(Part(0, 8), Part(8, 16), Part(16, 20), Part(20, 24),
                                            Part(24, 28), Part(28, 29)));
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
      for (int round = 0; round < 500; ++round) {
        team.parallel_for(
            3, 1, [&](int64_t begin, int64_t end) { calls += static_cast<int>(end - begin); });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(calls, 2 * 500 * 3);
}

// On invented nodes whose CPUs are not there: nobody is bound, all work.
TEST(ThreadTeam, OnNodesThatAreNotThere) {
  ThreadTeam team(4, NodeShares(4, {{0, {900, 901}}, {1, {902, 903}}}));
  EXPECT_EQ(team.size(), 4);
  EXPECT_EQ(team.nodes().parts().size(), 2u);
  std::atomic<int64_t> sum = 0;
  team.parallel_for(1000, 1, [&](int64_t begin, int64_t end) { sum += end - begin; });
  EXPECT_EQ(sum, 1000);
}

#ifndef NDEBUG
TEST(ThreadTeamDeathTest, NestedRunIsAProgrammersError) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        ThreadTeam team(2);
        team.run([&](int rank, int) {
          if (rank == 0) team.run([](int, int) {});
        });
      },
      "must not start another run");
}
#endif

}  // namespace
}  // namespace tidemill
