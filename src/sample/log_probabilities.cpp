#include "sample/log_probabilities.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <limits>

namespace tidemill {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The `count` largest as (token, logit), by insertion: count is small, and few tokens get in.
void select_top(std::span<const float> logits, size_t count, std::vector<TokenLogprob>& top) {
  top.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (top.size() == count) {
      if (count == 0 || logits[i] <= top.back().logprob) continue;
      top.pop_back();
    }
    auto place = top.end();
    while (place != top.begin() && (place - 1)->logprob < logits[i]) --place;
    top.insert(place, {static_cast<int32_t>(i), logits[i]});
  }
}

}  // namespace

Result<float> largest_logit(std::span<const float> logits, int64_t position) {
  // Independent lanes, so that the compiler can use vector registers.
  constexpr size_t kLanes = 16;
  std::array<float, kLanes> largest;
  std::array<int32_t, kLanes> bad{};
  largest.fill(-kInfinity);
  const auto visit = [&](size_t lane, float x) {
    largest[lane] = x > largest[lane] ? x : largest[lane];
    bad[lane] |= static_cast<int32_t>(!(x < kInfinity));
  };
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) visit(lane, logits[i + lane]);
  }
  for (; i < logits.size(); ++i) visit(0, logits[i]);

  if (std::any_of(bad.begin(), bad.end(), [](int32_t lane) { return lane != 0; })) {
    const auto first =
        std::find_if(logits.begin(), logits.end(), [](float x) { return !(x < kInfinity); });
    return fail(ErrorCode::kInternal,
                "logits for position {}: {} at token {}; the weights or a kernel are at fault",
                position, *first, first - logits.begin());
  }
  const float result = *std::max_element(largest.begin(), largest.end());
  if (result == -kInfinity) {
    return fail(ErrorCode::kInternal,
                "logits for position {}: all {} tokens are masked (-inf), none can be drawn",
                position, logits.size());
  }
  return result;
}

Status log_probabilities(std::span<const float> logits, int32_t chosen, int32_t top_count,
                         int64_t position, LogProbabilities& out) {
  assert(chosen >= 0 && chosen < std::ssize(logits) && top_count >= 0);
  TRY(const float largest, largest_logit(logits, position));
  double sum = 0.0;
  for (const float logit : logits) sum += static_cast<double>(std::exp(logit - largest));
  const double log_sum = static_cast<double>(largest) + std::log(sum);
  const auto logprob = [&](float logit) { return static_cast<float>(logit - log_sum); };

  out.chosen = {chosen, logprob(logits[chosen])};
  select_top(logits, static_cast<size_t>(top_count), out.top);
  for (TokenLogprob& entry : out.top) entry.logprob = logprob(entry.logprob);
  return {};
}

}  // namespace tidemill
