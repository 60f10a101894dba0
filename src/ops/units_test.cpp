#include "ops/units.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>

namespace tidemill {
namespace {

// A quarter and the rest, on CPUs that are not there.
NodeShares one_and_three() { return NodeShares(4, {{0, {900}}, {1, {901, 902, 903}}}); }

// What each thread was given, in order; nobody goes on before all of the team are there.
std::vector<std::vector<int64_t>> units_of_all(ThreadTeam& team, int64_t groups, int64_t count) {
  NextUnits next;
  std::mutex mutex;
  std::set<int> here;
  std::vector<std::vector<int64_t>> units(static_cast<size_t>(team.size()));
  share_units(team, next, groups, count, [&](int64_t unit, int rank) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (bool first = true; std::chrono::steady_clock::now() < deadline; first = false) {
      const std::lock_guard lock(mutex);
      if (first) units[static_cast<size_t>(rank)].push_back(unit);
      here.insert(rank);
      if (std::ssize(here) == team.size()) return;
    }
  });
  return units;
}

TEST(ShareUnits, EveryUnitOnce) {
  ThreadTeam teams[] = {ThreadTeam(1), ThreadTeam(3), ThreadTeam(4, one_and_three()),
                        ThreadTeam(2, one_and_three()),   // the system has refused two threads
                        ThreadTeam(1, one_and_three())};  // and three
  NextUnits next;
  for (ThreadTeam& team : teams) {
    for (const int64_t groups : {1, 2, 5}) {
      for (const int64_t units : {0, 1, 3, 100}) {
        std::vector<std::atomic<int>> done(static_cast<size_t>(groups * units));
        share_units(team, next, groups, units, [&](int64_t unit, int rank) {
          EXPECT_LT(rank, team.size());
          ++done[static_cast<size_t>(unit)];
        });
        for (const auto& count : done) ASSERT_EQ(count, 1) << groups << " of " << units;
      }
    }
  }
}

// With all of the team there, everybody begins with the share of their node, and nobody comes back
// to it once they help elsewhere.
TEST(ShareUnits, TheirOwnNodesFirst) {
  ThreadTeam team(4, one_and_three());
  constexpr int64_t kGroups = 3, kUnits = 40;
  const auto part_of = [](int64_t unit) { return unit % kUnits < kUnits / 4 ? 0 : 1; };
  const auto units = units_of_all(team, kGroups, kUnits);
  ASSERT_TRUE(std::ranges::none_of(units, &std::vector<int64_t>::empty));
  for (int rank = 0; rank < 4; ++rank) {
    const int home = rank == 0 ? 0 : 1;
    bool away = false;
    EXPECT_EQ(part_of(units[static_cast<size_t>(rank)].front()), home) << rank;
    for (const int64_t unit : units[static_cast<size_t>(rank)]) {
      away = away || part_of(unit) != home;
      EXPECT_EQ(part_of(unit) != home, away) << "thread " << rank << ", unit " << unit;
    }
  }
}

// One after the other, each thread would be given every other unit; it begins with a run instead.
TEST(ShareUnits, ThreadsBeginWithNeighbours) {
  ThreadTeam team(2);
  constexpr int64_t kUnits = 40;
  const auto units = units_of_all(team, 1, kUnits);
  ASSERT_TRUE(std::ranges::none_of(units, &std::vector<int64_t>::empty));
  EXPECT_EQ(units[0].front(), 0);
  EXPECT_EQ(units[1].front(), kUnits / 2);
  // Whoever helps takes units in between, never before.
  for (const auto& own : units) {
    for (size_t i = 1; i < own.size(); ++i) {
      const bool helps = own[i] / (kUnits / 2) != own[i - 1] / (kUnits / 2);
      if (!helps) {
        EXPECT_GT(own[i], own[i - 1]);
      }
    }
  }
}

}  // namespace
}  // namespace tidemill
