// Index scores of the cpu backend: what a thread does for one chunk of keys.
#pragma once

#include <cstdint>

#include "ops/attend/cpu_attend.h"

namespace tidemill {

inline constexpr int64_t kIndexChunk = 64;  // keys at most per call

struct IndexScoresArgs {
  PackedRows keys;  // at most kIndexChunk
  int64_t heads = 0;
  int64_t dim = 0;           // a multiple of 32
  int64_t tokens = 0;        // that see these keys
  const float* q = nullptr;  // [heads, dim] of the first token
  int64_t q_stride = 0;
  const float* weight = nullptr;  // [heads] of the first token
  int64_t weight_stride = 0;
  float* score = nullptr;  // of the first token; room for kIndexChunk per token
  int64_t score_stride = 0;
  float* memory = nullptr;  // kIndexChunk * dim floats
};

}  // namespace tidemill
