#include "torch_order.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace tidemill {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

void TorchOrderBackend::select(std::vector<float> score, int64_t visible, int64_t k, int32_t* out) {
  using Pair = std::pair<float, int64_t>;
  const int64_t n = static_cast<int64_t>(score.size());
  std::vector<Pair> queue;
  for (int64_t j = 0; j < n; ++j) queue.emplace_back(score[static_cast<size_t>(j)], j);
  const auto greater = [](const Pair& x, const Pair& y) { return x.first > y.first; };
  const int64_t kept = std::min(k, n);
  if (kept * 64 <= n) {
    std::partial_sort(queue.begin(), queue.begin() + kept, queue.end(), greater);
  } else if (kept > 0) {
    std::nth_element(queue.begin(), queue.begin() + kept - 1, queue.end(), greater);
  }
  std::vector<int32_t> chosen;
  for (int64_t i = 0; i < kept; ++i) {
    const auto& [value, j] = queue[static_cast<size_t>(i)];
    if (j < visible && value > -kInfinity) chosen.push_back(static_cast<int32_t>(j));
  }
  std::sort(chosen.begin(), chosen.end());
  std::copy(chosen.begin(), chosen.end(), out);
  std::fill(out + chosen.size(), out + k, -1);

  std::sort(score.begin(), score.end(), std::greater<float>());
  ++rows_;
  if (kept > 0 && kept < n && score[static_cast<size_t>(kept - 1)] > -kInfinity &&
      score[static_cast<size_t>(kept - 1)] == score[static_cast<size_t>(kept)]) {
    ++tied_rows_;
  }
}

void TorchOrderBackend::index_select(const IndexSelectArgs& a) {
  const int64_t entries = a.q.count > 0 ? a.visible[a.q.count - 1] : 0;
  for (int64_t t = 0; t < a.q.count; ++t) {
    std::vector<float> score(static_cast<size_t>(entries), -kInfinity);
    reference::index_scores(context_, a, t, score.data());
    if (a.pool_out != nullptr) {
      const int64_t blocks = (entries + a.pool_block - 1) / a.pool_block;
      std::vector<float> best(static_cast<size_t>(blocks), -kInfinity);
      for (int64_t j = 0; j < entries; ++j) {
        float& block = best[static_cast<size_t>(j / a.pool_block)];
        block = std::max(block, score[static_cast<size_t>(j)]);
      }
      if (a.visible[t] > 0)
        best[static_cast<size_t>((a.visible[t] - 1) / a.pool_block)] = kInfinity;
      select(best, blocks, a.pool_topk, a.pool_out + t * a.pool_topk);
    }
    if (a.pool_in != nullptr) {
      const int32_t* pool = a.pool_in + t * a.pool_topk;
      for (int64_t j = 0; j < entries; ++j) {
        const auto block = static_cast<int32_t>(j / a.pool_block);
        if (std::find(pool, pool + a.pool_topk, block) == pool + a.pool_topk) {
          score[static_cast<size_t>(j)] = -kInfinity;
        }
      }
    }
    select(score, a.visible[t], a.topk, a.selected + t * a.topk);
  }
}

}  // namespace tidemill
