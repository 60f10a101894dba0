// Units of work that the threads of a team share.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/thread_team.h"

namespace tidemill {

// body(unit, rank) for every unit of `groups` groups of `group_units`, numbered one group after the
// other; whoever is free takes the next. Threads begin with different groups and stay with one
// while it has any left: what its units share is fetched from the cache of another core by few.
// On several memory nodes a thread takes its node's share of every group first, which is the same
// in every call (NodeShares), and then what others have left of theirs: where the units of a group
// are the rows of a matrix in order, weights placed by the same shares are read from near by, and
// still nobody is waited for.
template <typename Body>
void share_units(ThreadTeam& team, int64_t groups, int64_t group_units, const Body& body) {
  struct alignas(64) Next {  // a cache line, which would travel between nodes if it were shared
    std::atomic<int64_t> unit = 0;
  };
  const NodeShares& nodes = team.nodes();
  const size_t parts = nodes.parts().size();
  std::vector<Next> next(parts * static_cast<size_t>(groups));
  team.run([&](int rank, int size) {
    const size_t home = nodes.part_of(rank);
    for (size_t i = 0; i < parts; ++i) {
      const size_t part = (home + i) % parts;
      const int64_t begin = nodes.begin(group_units, part);
      const int64_t count = nodes.begin(group_units, part + 1) - begin;
      for (int64_t j = 0; j < groups; ++j) {
        const int64_t group = (rank * groups / size + j) % groups;
        auto& free = next[part * static_cast<size_t>(groups) + static_cast<size_t>(group)].unit;
        for (int64_t unit; (unit = free.fetch_add(1, std::memory_order_relaxed)) < count;) {
          body(group * group_units + begin + unit, rank);
        }
      }
    }
  });
}

}  // namespace tidemill
