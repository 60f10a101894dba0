#include "sched/victims.h"

#include <algorithm>
#include <numeric>

namespace tidemill {

std::vector<size_t> choose_victims(const std::vector<VictimCandidate>& candidates, int64_t blocks,
                                   int64_t slots) {
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return candidates[a].rank > candidates[b].rank; });

  std::vector<size_t> chosen;
  for (const size_t i : order) {
    if (blocks <= 0 && slots <= 0) break;
    chosen.push_back(i);
    blocks -= candidates[i].blocks;
    --slots;
  }
  if (blocks > 0 || slots > 0) return {};

  // What is to spare lets go the better ranked first.
  for (size_t k = chosen.size(); k-- > 0;) {
    const int64_t yield = candidates[chosen[k]].blocks;
    if (blocks + yield > 0 || slots + 1 > 0) continue;
    blocks += yield;
    ++slots;
    chosen.erase(chosen.begin() + static_cast<std::ptrdiff_t>(k));
  }
  return chosen;
}

}  // namespace tidemill
