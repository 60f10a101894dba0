// Views that ops work on. Nothing here owns memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/both_sides.h"

namespace tidemill {

// How an element of Rows lies in memory. A value that the model keeps in bf16 is a float32 that
// bf16 represents exactly, or, for ops and backends that say so, the upper half of it.
enum class Element : uint8_t { kF32, kBf16 };

TIDEMILL_BOTH_SIDES constexpr int64_t bytes_of(Element e) { return e == Element::kBf16 ? 2 : 4; }

// A matrix of activations, one token (or entry) per row.
struct Rows {
  void* data = nullptr;
  int64_t count = 0;   // rows
  int64_t width = 0;   // elements per row
  int64_t stride = 0;  // elements from one row to the next
  Element element = Element::kF32;

  TIDEMILL_BOTH_SIDES float* f32(int64_t row) const {
    return static_cast<float*>(data) + row * stride;
  }
  TIDEMILL_BOTH_SIDES uint16_t* bf16(int64_t row) const {
    return static_cast<uint16_t*>(data) + row * stride;
  }
  // The same rows, only columns [begin, begin + columns).
  Rows slice(int64_t begin, int64_t columns) const {
    return {static_cast<std::byte*>(data) + begin * bytes_of(element), count, columns, stride,
            element};
  }
  Rows first(int64_t rows) const { return {data, rows, width, stride, element}; }
};

// How a cache stores one row of `width` values: codes first, then the scales.
enum class RowKind : uint8_t {
  kF32,      // no rounding (reference backend only)
  kQ8,       // E4M3, E8M0 scale per 32: window rows, 512 -> 528 B
  kQ4Entry,  // E2M1, E4M3 scale per 16: compressed entries, 512 -> 288 B
  kQ4Index,  // E2M1, E8M0 scale per 32: index keys, 128 -> 68 B
};

struct RowFormat {
  RowKind kind = RowKind::kF32;
  int64_t width = 0;

  TIDEMILL_BOTH_SIDES int64_t bytes() const {
    switch (kind) {
      case RowKind::kF32:
        return width * 4;
      case RowKind::kQ8:
        return width + width / 32;
      case RowKind::kQ4Entry:
        return width / 2 + width / 16;
      case RowKind::kQ4Index:
        return width / 2 + width / 32;
    }
    return 0;
  }
};

// Rows of one cache source inside the block pool. Blocks are whole: ops may read any row of a block
// that they read a row of. Row j of sequence s lies in block
// table[table_begin[s] + j / rows_per_block] at offset + (j % rows_per_block) * format.bytes().
struct PagedRows {
  const std::byte* base = nullptr;
  int64_t block_bytes = 0;
  int64_t offset = 0;
  int64_t rows_per_block = 0;
  RowFormat format;
  const int32_t* table = nullptr;        // block numbers of all sequences of the step
  const int64_t* table_begin = nullptr;  // per sequence

  TIDEMILL_BOTH_SIDES const std::byte* row(int64_t sequence, int64_t j) const {
    const int64_t block = table[table_begin[sequence] + j / rows_per_block];
    return base + block * block_bytes + offset + (j % rows_per_block) * format.bytes();
  }
};

}  // namespace tidemill
