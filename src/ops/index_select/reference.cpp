#include "ops/reference.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "ops/canonical.h"

namespace tidemill::reference {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Indices of the k best scores that are not -inf, ascending, padded with -1. Ties: lower index.
void select_best(const std::vector<float>& score, int64_t k, int32_t* out) {
  std::vector<int32_t> order(score.size());
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&](int32_t a, int32_t b) {
    const float x = score[static_cast<size_t>(a)];
    const float y = score[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  const int64_t kept = std::min(k, static_cast<int64_t>(order.size()));
  std::partial_sort(order.begin(), order.begin() + kept, order.end(), better);
  order.resize(static_cast<size_t>(kept));
  std::erase_if(order, [&](int32_t j) { return score[static_cast<size_t>(j)] == kMinusInfinity; });
  std::sort(order.begin(), order.end());
  std::copy(order.begin(), order.end(), out);
  std::fill(out + order.size(), out + k, -1);
}

void build_pool(const IndexSelectArgs& a, const std::vector<float>& score, int32_t* pool) {
  const int64_t visible = static_cast<int64_t>(score.size());
  const int64_t blocks = (visible + a.pool_block - 1) / a.pool_block;
  std::vector<float> best(static_cast<size_t>(blocks), kMinusInfinity);
  for (int64_t j = 0; j < visible; ++j) {
    float& block = best[static_cast<size_t>(j / a.pool_block)];
    block = std::max(block, score[static_cast<size_t>(j)]);
  }
  if (blocks > 0) best.back() = std::numeric_limits<float>::infinity();  // the newest is always in
  select_best(best, a.pool_topk, pool);
}

void keep_pool_only(const IndexSelectArgs& a, const int32_t* pool, std::vector<float>& score) {
  std::vector<float> kept(score.size(), kMinusInfinity);
  for (int64_t i = 0; i < a.pool_topk && pool[i] >= 0; ++i) {
    const size_t begin = static_cast<size_t>(pool[i] * a.pool_block);
    const size_t end = std::min(begin + static_cast<size_t>(a.pool_block), score.size());
    for (size_t j = begin; j < end; ++j) kept[j] = score[j];
  }
  score.swap(kept);
}

}  // namespace

void index_scores(const Context& context, const IndexSelectArgs& a, int64_t t, float* score) {
  const int64_t dim = a.keys.format.width;
  std::vector<float> key(static_cast<size_t>(dim));
  for (int64_t j = 0; j < a.visible[t]; ++j) {
    unpack_row(a.keys.format, a.keys.row(a.sequence[t], j), key.data());
    float total = 0;
    for (int64_t h = 0; h < a.heads; ++h) {
      const float d = context.bf16(dot(a.q.f32(t) + h * dim, key.data(), dim));
      total += context.bf16(std::max(d, 0.0f) * a.weight.f32(t)[h]);
    }
    score[j] = context.bf16(total);
  }
}

void index_select(const Context& context, const IndexSelectArgs& a) {
  context.team.parallel_for(a.q.count, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> score;
    for (int64_t t = begin; t < end; ++t) {
      score.resize(static_cast<size_t>(a.visible[t]));
      index_scores(context, a, t, score.data());
      if (a.pool_out != nullptr) build_pool(a, score, a.pool_out + t * a.pool_topk);
      if (a.pool_in != nullptr) keep_pool_only(a, a.pool_in + t * a.pool_topk, score);
      select_best(score, a.topk, a.selected + t * a.topk);
    }
  });
}

}  // namespace tidemill::reference
