// The lightning indexer: scores of all visible entries, exact top-k, candidate pool (spec 7.2-7.5).
#pragma once

#include <cstdint>

#include "ops/tensor.h"

namespace tidemill {

// d[h][j] = bf16(q_h . key_j); score[j] = bf16(sum_h bf16(max(d, 0) * weight_h)), heads ascending.
// Equal scores: the lower index wins. Lists are ascending and padded with -1.
struct IndexSelectArgs {
  Rows q;       // [T, heads * dim], already rounded to the key format
  Rows weight;  // [T, heads], bf16
  int64_t heads = 1;
  PagedRows keys;
  const int32_t* sequence = nullptr;  // [T]
  const int64_t* visible = nullptr;   // [T] entries 0..visible-1 may be selected
  int64_t most_visible = 0;           // the largest of them, or more
  int64_t topk = 0;
  int32_t* selected = nullptr;  // [T, topk]

  // Candidate pool: blocks of pool_block entries, at most pool_topk per token.
  int64_t pool_block = 0;
  int64_t pool_topk = 0;
  int32_t* pool_out = nullptr;       // [T, pool_topk]: build the pool
  const int32_t* pool_in = nullptr;  // [T, pool_topk]: select inside this pool only
};

}  // namespace tidemill
