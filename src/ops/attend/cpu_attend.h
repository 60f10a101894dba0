// Attention of the cpu backend: what a thread does for one token and some of its heads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/tensor.h"

namespace tidemill {

inline constexpr int64_t kAttendChunk = 64;  // keys per step of the online softmax

// Packed rows of one format, by address: rows of a cache lie in rings and pages.
struct PackedRows {
  RowFormat format;
  const std::byte* const* row = nullptr;
  int64_t count = 0;
};

struct AttendHeadsArgs {
  const float* q = nullptr;  // [heads, dim]
  float* out = nullptr;      // [heads, dim]
  int64_t heads = 0;
  int64_t dim = 0;              // a multiple of 32
  const float* sink = nullptr;  // [heads]
  PackedRows window;            // first
  PackedRows entries;           // then these
  float* memory = nullptr;      // attend_memory(heads, dim) floats
};

// A chunk of widened keys, probabilities of a chunk, and per head the largest score, the
// denominator and the factor of the sums so far.
inline int64_t attend_memory(int64_t heads, int64_t dim) {
  return kAttendChunk * dim + heads * (kAttendChunk + 3);
}

}  // namespace tidemill
