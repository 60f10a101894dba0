// Kernel of cpu_index.h over a policy S (simd/avx512.h).
#pragma once

#include "ops/index_select/cpu_index.h"
#include "ops/rows/cpu_rows_kernel.h"

namespace tidemill {
namespace {

// Adds heads [h, h + kHeads) to the totals of a token, heads ascending.
template <class S, int kHeads>
void add_index_heads(const IndexScoresArgs& a, const float* q, const float* weight, int64_t padded,
                     float* total) {
  using F = typename S::F;
  const float* head[kHeads];
  for (int i = 0; i < kHeads; ++i) head[i] = q + i * a.dim;
  float d[kHeads][kIndexChunk];
  for (int64_t k = 0; k < padded; k += S::kTileRows) {
    F sum[kHeads][S::kTileRows];
    for (int i = 0; i < kHeads; ++i) {
      for (int r = 0; r < S::kTileRows; ++r) sum[i][r] = S::zero();
    }
    multiply_tile<S, false, kHeads, S::kTileRows>(a.memory + k * a.dim, a.dim, head, a.dim, sum);
    static_assert(S::kTileRows == 4);
    for (int i = 0; i < kHeads; ++i) {
      S::reduce4(sum[i][0], sum[i][1], sum[i][2], sum[i][3], d[i] + k);
    }
  }
  for (int i = 0; i < kHeads; ++i) {
    for (int64_t k = 0; k < padded; k += 16) {
      const F positive = S::max(S::zero(), round_bf16<S>(S::load(d[i] + k)));  // NaN stays
      const F part = round_bf16<S>(S::mul(positive, S::set(weight[i])));
      S::store(total + k, S::add(S::load(total + k), part));
    }
  }
}

template <class S>
void index_scores(const IndexScoresArgs& a) {
  const int64_t padded = (a.keys.count + 15) / 16 * 16;
  for (int64_t k = 0; k < a.keys.count; ++k) {
    unpack<S>(a.keys.format, a.keys.row[k], a.memory + k * a.dim);
  }
  for (int64_t i = a.keys.count * a.dim; i < padded * a.dim; i += 16) {
    S::store(a.memory + i, S::zero());
  }
  for (int64_t t = 0; t < a.tokens; ++t) {
    const float* q = a.q + t * a.q_stride;
    const float* weight = a.weight + t * a.weight_stride;
    float total[kIndexChunk] = {};
    int64_t h = 0;
    for (; h + S::kTileTokens <= a.heads; h += S::kTileTokens) {
      add_index_heads<S, S::kTileTokens>(a, q + h * a.dim, weight + h, padded, total);
    }
    for (; h < a.heads; ++h) add_index_heads<S, 1>(a, q + h * a.dim, weight + h, padded, total);
    float* score = a.score + t * a.score_stride;
    for (int64_t k = 0; k < padded; k += 16) {
      S::store(score + k, round_bf16<S>(S::load(total + k)));
    }
  }
}

}  // namespace
}  // namespace tidemill
