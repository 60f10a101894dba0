// Exact top-k of bf16 scores in linear time.
#pragma once

#include <cstdint>

namespace tidemill {

// Indices of the k largest of n scores that are bf16 values, ascending, -inf never chosen, equal
// scores: the lower index first; padded with -1 to k. Two counting passes find the k-th score.
void select_largest(const float* score, int64_t n, int64_t k, int32_t* out);

}  // namespace tidemill
