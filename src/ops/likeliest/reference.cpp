#include "ops/reference.h"

#include <algorithm>
#include <array>
#include <limits>

namespace tidemill::reference {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

int32_t likeliest_of(const float* row, int64_t width) {
  // Independent lanes, so that the compiler can use vector registers.
  constexpr int64_t kLanes = 16;
  std::array<float, kLanes> largest;
  std::array<int32_t, kLanes> bad{};
  largest.fill(-kInfinity);
  const auto visit = [&](int64_t lane, float x) {
    largest[static_cast<size_t>(lane)] = std::max(largest[static_cast<size_t>(lane)], x);
    bad[static_cast<size_t>(lane)] |= static_cast<int32_t>(!(x < kInfinity));
  };
  int64_t k = 0;
  for (; k + kLanes <= width; k += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) visit(lane, row[k + lane]);
  }
  for (; k < width; ++k) visit(0, row[k]);
  const float best = *std::max_element(largest.begin(), largest.end());
  const bool any_bad = std::any_of(bad.begin(), bad.end(), [](int32_t lane) { return lane != 0; });
  if (any_bad || best == -kInfinity) return -1;
  return static_cast<int32_t>(std::find(row, row + width, best) - row);
}

}  // namespace

void likeliest(const Context& context, const LikeliestArgs& a) {
  context.team.parallel_for(a.logits.count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) a.id[t] = likeliest_of(a.logits.f32(t), a.logits.width);
  });
}

}  // namespace tidemill::reference
