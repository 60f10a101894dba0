#include "state/state_pool.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>

namespace tidemill {
namespace {

void append(std::vector<std::byte>& out, const std::byte* data, int64_t bytes) {
  out.insert(out.end(), data, data + bytes);
}

}  // namespace

void Sequence::rewind(int64_t length) {
  high_water = std::max(high_water, static_cast<int64_t>(tokens.size()));
  tokens.resize(static_cast<size_t>(length));
}

StatePool::StatePool(Backend& backend, StateLayout layout, Backend::Buffer slots,
                     Backend::Buffer blocks, int64_t slot_count, int64_t block_count)
    : backend_(&backend),
      layout_(std::move(layout)),
      slot_memory_(std::move(slots)),
      block_memory_(std::move(blocks)),
      slot_count_(slot_count),
      pool_(block_count) {
  for (int64_t i = slot_count; i-- > 0;) free_slots_.push_back(i);
}

Result<StatePool> StatePool::create(Backend& backend, StateLayout layout, int64_t slots,
                                    int64_t blocks) {
  if (slots < 1 || blocks < 0 || blocks > std::numeric_limits<int32_t>::max()) {
    return fail(ErrorCode::kInvalidArgument, "cannot make a state pool of {} slots and {} blocks",
                slots, blocks);
  }
  TRY(auto slot_memory, backend.allocate(slots * layout.slot_bytes));
  TRY(auto block_memory, backend.allocate(blocks * layout.block_bytes));
  return StatePool(backend, std::move(layout), std::move(slot_memory), std::move(block_memory),
                   slots, blocks);
}

Result<Sequence> StatePool::acquire() {
  if (free_slots_.empty()) {
    return fail(ErrorCode::kNoCapacity,
                "all {} sequence slots are in use ({} come back with the steps in flight)",
                slot_count_, returning_slots());
  }
  Sequence sequence;
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  return sequence;
}

Status StatePool::check_capacity(int64_t needed, int64_t tokens) const {
  if (needed <= free_blocks()) return {};
  return fail(ErrorCode::kNoCapacity,
              "{} tokens need {} more blocks of {} tokens; {} of {} are free and {} come back with "
              "the steps in flight",
              tokens, needed, kBlockTokens, free_blocks(), pool_.count(), returning_blocks());
}

int32_t StatePool::take_block() {
  const BlockPool::Allocation taken = pool_.allocate();
  assert(taken.block >= 0 && "check_capacity has counted");
  if (taken.evicted) {
    evicted_.push_back(taken.block);
    if (poison_) fill(block(taken.block));
  }
  return taken.block;
}

int64_t StatePool::blocks_needed(const Sequence& sequence, int64_t tokens) const {
  const int64_t have = static_cast<int64_t>(sequence.blocks.size());
  // The first block that is written; in a replay the first writes come after the adopted tokens.
  const int64_t first = std::max(sequence.length(), sequence.adopted) / kBlockTokens;
  const int64_t end = std::min(have, layout_.blocks_for(tokens));
  int64_t copies = 0;
  for (int64_t i = first; i < end; ++i) {
    copies += !is_exclusive(sequence.blocks[static_cast<size_t>(i)]);
  }
  return copies + std::max<int64_t>(0, layout_.blocks_for(tokens) - have);
}

Status StatePool::reserve(Sequence& sequence, int64_t tokens) {
  CHECK_OK(check_capacity(blocks_needed(sequence, tokens), tokens));
  const int64_t write_from = std::max(sequence.length(), sequence.adopted);
  if (tokens > write_from) CHECK_OK(make_writable(sequence, write_from));
  while (static_cast<int64_t>(sequence.blocks.size()) < layout_.blocks_for(tokens)) {
    sequence.blocks.push_back(take_block());
  }
  return {};
}

Status StatePool::make_writable(Sequence& sequence, int64_t position) {
  const auto first = static_cast<size_t>(position / kBlockTokens);
  const auto shared = [&](int32_t block) { return !is_exclusive(block); };
  if (first >= sequence.blocks.size()) return {};
  const auto begin = sequence.blocks.begin() + static_cast<int64_t>(first);
  CHECK_OK(check_capacity(std::count_if(begin, sequence.blocks.end(), shared), sequence.length()));
  // A key names the old content and everything after it.
  if (sequence.keys.size() > first) sequence.keys.resize(first);
  // Last block first: the order in which a path is given up.
  for (size_t i = sequence.blocks.size(); i-- > first;) {
    const int32_t old = sequence.blocks[i];
    if (!shared(old)) continue;
    sequence.blocks[i] = take_block();
    copy_within(block(old), block(sequence.blocks[i]));
    drop_reference(old);
  }
  return {};
}

Result<Sequence> StatePool::fork(const Sequence& sequence) {
  const int64_t complete = sequence.length() / kBlockTokens;
  const bool partial = sequence.length() % kBlockTokens != 0;
  CHECK_OK(check_capacity(partial ? 1 : 0, sequence.length()));
  TRY(Sequence twin, acquire());
  const int64_t slot_number = twin.slot;
  twin = sequence;
  twin.slot = slot_number;
  copy_within(slot(sequence.slot), slot(twin.slot));
  twin.blocks.resize(static_cast<size_t>(std::max(complete, layout_.blocks_for(twin.adopted))));
  for (const int32_t shared : twin.blocks) add_reference(shared);
  if (partial && twin.blocks.size() == static_cast<size_t>(complete)) {
    twin.blocks.push_back(take_block());
    copy_within(block(sequence.blocks[static_cast<size_t>(complete)]), block(twin.blocks.back()));
  }
  return twin;
}

Status StatePool::truncate(Sequence& sequence, int64_t length) {
  const int64_t old = sequence.length();
  if (length < 0 || length > old || old - length > layout_.rollback) {
    return fail(ErrorCode::kInvalidArgument,
                "cannot go back from {} tokens to {}: at most {} can be undone", old, length,
                layout_.rollback);
  }
  if (length < old && length < sequence.adopted) {
    return fail(ErrorCode::kInvalidArgument,
                "cannot go back from {} tokens to {}: the first {} come from the prefix cache", old,
                length, sequence.adopted);
  }
  sequence.rewind(length);
  trim(sequence, layout_.blocks_for(length));
  const auto complete = static_cast<size_t>(length / kBlockTokens);
  if (length >= sequence.adopted && sequence.keys.size() > complete) sequence.keys.resize(complete);
  return {};
}

void StatePool::trim(Sequence& sequence, int64_t blocks) {
  const int64_t kept = std::max(blocks, layout_.blocks_for(sequence.adopted));
  while (static_cast<int64_t>(sequence.blocks.size()) > kept) {
    drop_reference(sequence.blocks.back());
    sequence.blocks.pop_back();
  }
}

void StatePool::release(Sequence& sequence) {
  for (size_t i = sequence.blocks.size(); i-- > 0;) drop_reference(sequence.blocks[i]);
  if (sequence.slot >= 0) {
    if (fence_.idle()) {
      free_slot(sequence.slot);
    } else {
      returning_slots_.push_back({last_reader(), sequence.slot});
    }
  }
  sequence = Sequence{};
}

void StatePool::drop_reference(int32_t number) {
  const bool freed = pool_.drop_reference(number, last_reader());
  if (freed && poison_) fill(block(number));
}

void StatePool::unpin(int32_t number) {
  const bool freed = pool_.unpin(number, last_reader());
  if (freed && poison_) fill(block(number));
}

void StatePool::replace_block(Sequence& sequence, int64_t number, int32_t replacement) {
  int32_t& mine = sequence.blocks[static_cast<size_t>(number)];
  add_reference(replacement);
  drop_reference(mine);
  mine = replacement;
}

bool StatePool::evict_block() {
  const int32_t evicted = pool_.evict();
  if (evicted < 0) return false;
  evicted_.push_back(evicted);
  if (poison_) fill(block(evicted));
  return true;
}

void StatePool::free_slot(int64_t number) {
  if (poison_) fill(slot(number));
  free_slots_.push_back(number);
}

void StatePool::finish_step(int64_t step) {
  fence_.finish_step(step);
  std::vector<int32_t> freed;
  pool_.finish_step(step, freed);
  if (poison_) {
    for (const int32_t number : freed) fill(block(number));
  }
  while (!returning_slots_.empty() && returning_slots_.front().last_reader <= step) {
    free_slot(returning_slots_.front().slot);
    returning_slots_.pop_front();
  }
}

std::vector<std::byte> StatePool::snapshot(const Sequence& sequence) const {
  std::vector<std::byte> out;
  const int64_t length = sequence.length();
  const std::vector<std::byte> slot_bytes = read(slot(sequence.slot));
  const std::byte* slot = slot_bytes.data();
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
    std::vector<std::byte> bytes;
    for (int64_t j = 0; j < length / source.ratio; ++j) {
      const int64_t row = j % source.rows_per_block;
      if (row == 0) {
        bytes = read(block(sequence.blocks[static_cast<size_t>(j / source.rows_per_block)]));
      }
      const std::byte* base = bytes.data();
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

void StatePool::copy_within(std::span<const std::byte> from, std::span<std::byte> to) {
  backend_->copy(to.data(), from.data(), static_cast<int64_t>(to.size()));
}

void StatePool::fill(std::span<std::byte> memory) {
  const std::vector<std::byte> junk(memory.size(), std::byte{0xFF});
  write(memory, junk.data());
}

void StatePool::poison_free_memory() {
  for (const int64_t number : free_slots_) fill(slot(number));
  for (const int32_t number : pool_.free_list()) fill(block(number));
}

}  // namespace tidemill
