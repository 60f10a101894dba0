// The words of RequestRecord::outcome.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

namespace tidemill {

// The last one stands for all others, so that a sum over outcomes is a sum over requests.
inline constexpr std::array<std::string_view, 8> kOutcomes = {
    "stop", "length", "tool_calls", "abort", "error", "refused", "replayed", "other"};

inline size_t outcome_index(std::string_view outcome) {
  const auto place = std::find(kOutcomes.begin(), kOutcomes.end() - 1, outcome);
  return static_cast<size_t>(place - kOutcomes.begin());
}

}  // namespace tidemill
