#include "state/state_pool.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace tidemill {
namespace {

void append(std::vector<std::byte>& out, const std::byte* data, int64_t bytes) {
  out.insert(out.end(), data, data + bytes);
}

}  // namespace

StatePool::StatePool(StateLayout layout, Backend::Buffer slots, Backend::Buffer blocks,
                     int64_t slot_count, int64_t block_count)
    : layout_(std::move(layout)),
      slot_memory_(std::move(slots)),
      block_memory_(std::move(blocks)),
      slot_count_(slot_count),
      block_count_(block_count) {
  for (int64_t i = slot_count; i-- > 0;) free_slots_.push_back(i);
  for (int64_t i = block_count; i-- > 0;) free_blocks_.push_back(static_cast<int32_t>(i));
}

Result<StatePool> StatePool::create(Backend& backend, StateLayout layout, int64_t slots,
                                    int64_t blocks) {
  if (slots < 1 || blocks < 0 || blocks > std::numeric_limits<int32_t>::max()) {
    return fail(ErrorCode::kInvalidArgument, "cannot make a state pool of {} slots and {} blocks",
                slots, blocks);
  }
  TRY(auto slot_memory, backend.allocate(slots * layout.slot_bytes));
  TRY(auto block_memory, backend.allocate(blocks * layout.block_bytes));
  return StatePool(std::move(layout), std::move(slot_memory), std::move(block_memory), slots,
                   blocks);
}

Result<Sequence> StatePool::acquire() {
  if (free_slots_.empty()) {
    return fail(ErrorCode::kNoCapacity, "all {} sequence slots are in use", slot_count_);
  }
  Sequence sequence;
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  return sequence;
}

Status StatePool::reserve(Sequence& sequence, int64_t tokens) {
  const int64_t have = static_cast<int64_t>(sequence.blocks.size());
  const int64_t need = layout_.blocks_for(tokens) - have;
  if (need > free_blocks()) {
    return fail(ErrorCode::kNoCapacity,
                "{} tokens need {} more blocks of {} tokens; {} of {} are free", tokens, need,
                kBlockTokens, free_blocks(), block_count_);
  }
  for (int64_t i = 0; i < need; ++i) {
    sequence.blocks.push_back(free_blocks_.back());
    free_blocks_.pop_back();
  }
  return {};
}

Status StatePool::truncate(Sequence& sequence, int64_t length) {
  if (length < 0 || length > sequence.length() || sequence.length() - length > layout_.rollback) {
    return fail(ErrorCode::kInvalidArgument,
                "cannot go back from {} tokens to {}: at most {} can be undone", sequence.length(),
                length, layout_.rollback);
  }
  sequence.tokens.resize(static_cast<size_t>(length));
  const auto kept = static_cast<size_t>(layout_.blocks_for(length));
  while (sequence.blocks.size() > kept) {
    free_blocks_.push_back(sequence.blocks.back());
    sequence.blocks.pop_back();
  }
  return {};
}

void StatePool::release(Sequence& sequence) {
  free_blocks_.insert(free_blocks_.end(), sequence.blocks.rbegin(), sequence.blocks.rend());
  if (sequence.slot >= 0) free_slots_.push_back(sequence.slot);
  sequence = Sequence{};
}

std::vector<std::byte> StatePool::snapshot(const Sequence& sequence) const {
  std::vector<std::byte> out;
  const int64_t length = sequence.length();
  const std::byte* slot = slots() + sequence.slot * layout_.slot_bytes;
  const auto append_ring = [&](int64_t ring, int64_t rows) {
    const int64_t bytes = layout_.window.bytes();
    for (int64_t p = std::max({int64_t{0}, sequence.decoder_floor, length - rows}); p < length;
         ++p) {
      append(out, slot + ring + p % layout_.ring_rows * bytes, bytes);
    }
  };
  // The next token sees itself and window - 1 earlier positions; a draft sees a whole window.
  for (const int64_t ring : layout_.ring_offset) append_ring(ring, layout_.window_tokens - 1);
  for (const int64_t ring : layout_.draft_ring_offset) append_ring(ring, layout_.window_tokens);
  for (const StateLayout::Source& source : layout_.sources) {
    for (int64_t j = 0; j < length / source.ratio; ++j) {
      const int64_t block = sequence.blocks[static_cast<size_t>(j / source.rows_per_block)];
      const std::byte* base = blocks() + block * layout_.block_bytes;
      const int64_t row = j % source.rows_per_block;
      append(out, base + source.entry_offset + row * layout_.entry.bytes(), layout_.entry.bytes());
      append(out, base + source.key_offset + row * layout_.key.bytes(), layout_.key.bytes());
    }
    if (source.ratio > 1 && length % source.ratio != 0) {
      const int64_t row = (length - 1) % layout_.pending_rows;
      append(out, slot + source.pending_offset + row * layout_.pending_row_bytes,
             layout_.pending_row_bytes);
    }
  }
  return out;
}

void StatePool::poison_free_memory() {
  for (const int64_t slot : free_slots_) {
    std::memset(slots() + slot * layout_.slot_bytes, 0xFF, static_cast<size_t>(layout_.slot_bytes));
  }
  for (const int32_t block : free_blocks_) {
    std::memset(blocks() + block * layout_.block_bytes, 0xFF,
                static_cast<size_t>(layout_.block_bytes));
  }
}

}  // namespace tidemill
