// Units of work that the threads of a team share.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/thread_team.h"

namespace tidemill {

// The next unit of every run of neighbours; kept between calls, so that none allocates. Each has a
// cache line to itself, which would travel between threads if it were shared.
struct alignas(64) NextUnit {
  std::atomic<int64_t> unit = 0;
};
using NextUnits = std::vector<NextUnit>;

// body(unit, rank) for every unit of `groups` groups of `group_units`, numbered one group after the
// other. Units lie in runs of neighbours: a group is one, but the units of a single group make as
// many as there are threads. Threads begin with different runs and stay with one while it has any
// left, then they help others: so each reads its weights in order, what a kernel asks for ahead
// (cpu_matmul_kernel.h) is what its thread reads next, and what the units of a group share is
// fetched by few.
//
// On several memory nodes every run is divided between them, in the same way in every call
// (NodeShares), and a thread takes its node's share of all runs first: where the units of a group
// are the rows of a matrix in order, weights placed by the same shares are read from near by, and
// still nobody is waited for.
template <typename Body>
void share_units(ThreadTeam& team, NextUnits& next, int64_t groups, int64_t group_units,
                 const Body& body) {
  const NodeShares& nodes = team.nodes();
  const auto parts = nodes.parts();
  const auto first_rank = [&](size_t part) {
    return part < parts.size() ? parts[part].first_rank : team.size();
  };
  // At least one, also where the system has refused the threads of a node.
  const auto threads = [&](size_t part) {
    return std::max(1, first_rank(part + 1) - first_rank(part));
  };
  const bool single = groups == 1;
  const auto runs_of = [&](size_t part) { return single ? int64_t{threads(part)} : groups; };
  const auto next_of = [&](size_t part, int64_t run) -> std::atomic<int64_t>& {
    const int64_t before = single ? first_rank(part) : static_cast<int64_t>(part) * groups;
    return next[static_cast<size_t>(before + run)].unit;
  };
  // First and one past the last unit of a run inside its group.
  const auto range_of = [&](size_t part, int64_t run) {
    const int64_t begin = nodes.begin(group_units, part);
    const int64_t count = nodes.begin(group_units, part + 1) - begin;
    if (!single) return std::pair(begin, begin + count);
    return std::pair(begin + count * run / threads(part),
                     begin + count * (run + 1) / threads(part));
  };

  const int most = std::max(team.size(), parts.back().first_rank) + 1;
  const size_t needed =
      single ? static_cast<size_t>(most) : parts.size() * static_cast<size_t>(groups);
  if (next.size() < needed) next = NextUnits(needed);
  for (size_t part = 0; part < parts.size(); ++part) {
    for (int64_t run = 0; run < runs_of(part); ++run) {
      next_of(part, run) = range_of(part, run).first;
    }
  }
  team.run([&](int rank, int) {
    const size_t home = nodes.part_of(rank);
    for (size_t i = 0; i < parts.size(); ++i) {
      const size_t part = (home + i) % parts.size();
      const int64_t runs = runs_of(part);
      const int64_t start = (rank - first_rank(home)) * runs / threads(home);
      for (int64_t j = 0; j < runs; ++j) {
        const int64_t run = (start + j) % runs;
        const int64_t end = range_of(part, run).second;
        const int64_t group = single ? 0 : run;
        std::atomic<int64_t>& free = next_of(part, run);
        while (free.load(std::memory_order_relaxed) < end) {
          const int64_t unit = free.fetch_add(1, std::memory_order_relaxed);
          if (unit < end) body(group * group_units + unit, rank);
        }
      }
    }
  });
}

}  // namespace tidemill
