// Moving and quantising rows: into caches, between row sets, in place.
#pragma once

#include "ops/tensor.h"

namespace tidemill {

// Quantises row t of x into base + add + offset[t]; a negative offset skips the row.
struct StoreRowsArgs {
  Rows x;
  RowFormat format;
  std::byte* base = nullptr;
  int64_t add = 0;
  const int64_t* offset = nullptr;
};

// Copies packed row t (row_bytes each, densely packed) to base + add + offset[t]; negative: skip.
struct ScatterRowsArgs {
  const std::byte* rows = nullptr;
  int64_t count = 0;
  int64_t row_bytes = 0;
  std::byte* base = nullptr;
  int64_t add = 0;
  const int64_t* offset = nullptr;
};

// x becomes the value that a cache of this kind would hold.
struct RoundRowsArgs {
  Rows x;
  RowKind kind = RowKind::kQ4Index;
  int64_t group = 0;  // elements that are quantised together as one row (a head); divides width
};

// out[i] = in[row[i]].
struct SelectRowsArgs {
  Rows in;
  const int64_t* row = nullptr;
  Rows out;
};

// out[i] = row, the only one of its kind.
struct RepeatRowArgs {
  Rows row;
  Rows out;
};

}  // namespace tidemill
