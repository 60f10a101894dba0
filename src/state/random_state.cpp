#include "state/random_state.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace tidemill {
namespace {

using Random = std::mt19937_64;

void fill_floats(Random& random, std::byte* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(static_cast<int64_t>(random())) * 0x1p-63f;
    std::memcpy(to + i * static_cast<int64_t>(sizeof value), &value, sizeof value);
  }
}

// `count` bytes of which each is (random & keep) | set.
void fill_bytes(Random& random, std::byte* to, int64_t count, uint8_t keep, uint8_t set) {
  uint64_t word = 0;
  for (int64_t i = 0; i < count; ++i, word >>= 8) {
    if (i % 8 == 0) word = random();
    to[i] = static_cast<std::byte>((word & keep) | set);
  }
}

// Codes first, then scales that make values of about 1 of them.
void fill_row(Random& random, const RowFormat& format, std::byte* row) {
  constexpr uint8_t kE8m0One = 127;
  constexpr uint8_t kE8m0Quarter = 127 - 2;
  constexpr uint8_t kE4m3Quarter = 5 << 3;
  const int64_t codes = format.kind == RowKind::kQ8 ? format.width : format.width / 2;
  switch (format.kind) {
    case RowKind::kF32:
      return fill_floats(random, row, format.width);
    case RowKind::kQ8:  // magnitudes from 1/8 to 2
      fill_bytes(random, row, codes, 0x9F, 0x20);
      return fill_bytes(random, row + codes, format.bytes() - codes, 0, kE8m0One);
    case RowKind::kQ4Entry:
      fill_bytes(random, row, codes, 0xFF, 0);
      return fill_bytes(random, row + codes, format.bytes() - codes, 0, kE4m3Quarter);
    case RowKind::kQ4Index:
      fill_bytes(random, row, codes, 0xFF, 0);
      return fill_bytes(random, row + codes, format.bytes() - codes, 0, kE8m0Quarter);
  }
}

void fill_rows(Random& random, const RowFormat& format, int64_t count, std::byte* to) {
  for (int64_t i = 0; i < count; ++i) fill_row(random, format, to + i * format.bytes());
}

void fill_block(Random& random, const StateLayout& layout, std::byte* block) {
  for (const StateLayout::Source& source : layout.sources) {
    fill_rows(random, layout.entry, source.rows_per_block, block + source.entry_offset);
    fill_rows(random, layout.key, source.rows_per_block, block + source.key_offset);
  }
}

void fill_slot(Random& random, const StateLayout& layout, std::byte* slot) {
  for (const auto* rings : {&layout.ring_offset, &layout.draft_ring_offset}) {
    for (const int64_t ring : *rings) {
      fill_rows(random, layout.window, layout.ring_rows, slot + ring);
    }
  }
}

// `distinct` bytes at the beginning of `memory`, again and again.
void repeat(const StatePool& pool, std::span<std::byte> memory, size_t distinct) {
  for (size_t done = distinct; done > 0 && done < memory.size();) {
    const size_t next = std::min(done, memory.size() - done);
    pool.write(memory.subspan(done, next), memory.data());
    done += next;
  }
}

}  // namespace

void fill_with_random_rows(StatePool& pool, int64_t context) {
  constexpr int64_t kMostBytes = int64_t{1} << 30;
  const StateLayout& layout = pool.layout();
  Random random(1);
  if (const int64_t blocks = pool.block_pool().count(); blocks > 0 && layout.block_bytes > 0) {
    const int64_t room = std::max<int64_t>(kMostBytes / layout.block_bytes, 1);
    const int64_t distinct =
        std::clamp<int64_t>(layout.blocks_for(context), 1, std::min(blocks, room));
    std::vector<std::byte> rows(static_cast<size_t>(distinct * layout.block_bytes));
    for (int64_t i = 0; i < distinct; ++i) {
      fill_block(random, layout, rows.data() + i * layout.block_bytes);
    }
    const std::span memory(pool.blocks(), static_cast<size_t>(blocks * layout.block_bytes));
    pool.write(memory.first(rows.size()), rows.data());
    repeat(pool, memory, rows.size());
  }
  std::vector<std::byte> slot(static_cast<size_t>(layout.slot_bytes));
  fill_slot(random, layout, slot.data());
  const std::span memory(pool.slots(), static_cast<size_t>(pool.slot_count() * layout.slot_bytes));
  pool.write(memory.first(slot.size()), slot.data());
  repeat(pool, memory, slot.size());
}

}  // namespace tidemill
