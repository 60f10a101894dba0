// Attention of many query heads over one shared key = value row per position: the sliding window,
// then the selected compressed entries, one softmax with a sink (spec 6.2).
#pragma once

#include <cstdint>

#include "model/weights.h"
#include "ops/tensor.h"

namespace tidemill {

// Keys of query row t, in this order: window positions window_begin[t] .. window_end[t] - 1, at
// most ring_rows of them, then selected[t][0..] up to the first -1. Positions from step_start[s] on
// are rows of this step
// (`fresh`), earlier ones lie in the ring of the sequence. Walked in chunks of 64 with an online
// softmax; probabilities are rounded to bf16 for the value product, the denominator is not.
struct AttendArgs {
  Rows q;    // [T, heads * dim]
  Rows out;  // [T, heads * dim]
  int64_t heads = 1;
  F32Vector sink;  // per head: adds to the denominator only

  const int32_t* sequence = nullptr;      // [T]
  const int64_t* window_begin = nullptr;  // [T] positions
  const int64_t* window_end = nullptr;    // [T] exclusive
  RowFormat window_format;
  const std::byte* fresh = nullptr;     // packed rows of this step
  const int64_t* step_start = nullptr;  // per sequence: position of its first fresh row
  const int64_t* step_row = nullptr;    // per sequence: number of that row in `fresh`
  const std::byte* ring_base = nullptr;
  int64_t ring_add = 0;                  // offset of the layer inside a slot
  const int64_t* ring_offset = nullptr;  // per sequence: its slot
  int64_t ring_rows = 0;                 // position p lies in ring row p mod ring_rows

  PagedRows entries;                  // format.width 0: window only
  const int32_t* selected = nullptr;  // [T, topk]
  int64_t topk = 0;
};

}  // namespace tidemill
