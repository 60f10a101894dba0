// Who is preempted when something is short.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tidemill {

// Order of running requests; the greatest is preempted first. Nothing in it changes while a request
// lives, and it ends in a number that no two share: two requests can never take turns in preempting
// each other. (The time to spare before a deadline would: it shrinks for whoever waits.)
struct Rank {
  int32_t priority = 0;
  double deadline = 0;        // infinite without one
  uint64_t start_number = 0;  // a preempted request keeps its own

  auto operator<=>(const Rank&) const = default;
};

struct VictimCandidate {
  Rank rank;
  int64_t blocks = 0;  // that come free, and one slot with them
};

// Indices of the candidates to preempt so that at least `blocks` and `slots` come free, from the
// greatest rank on and without any that the others make superfluous. Empty when all together are
// not enough: then nobody is preempted in vain.
std::vector<size_t> choose_victims(const std::vector<VictimCandidate>& candidates, int64_t blocks,
                                   int64_t slots);

}  // namespace tidemill
