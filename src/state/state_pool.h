// Memory of all sequences: a pool of blocks and a pool of slots, and the handles into them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "ops/backend.h"
#include "state/layout.h"

namespace tidemill {

// One mutable timeline: tokens and handles into a StatePool. Owns no memory of the pool itself;
// hand it back with StatePool::release.
struct Sequence {
  std::vector<int32_t> tokens;  // every token whose state is in the caches
  int64_t slot = -1;
  std::vector<int32_t> blocks;
  // Bounded replay: decoder layers (and the drafter) hold no window rows below this position.
  int64_t decoder_floor = 0;

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
};

// Not thread safe. Blocks and slots that are handed out again hold old bytes: every reader is
// bounded by positions, never by contents.
class StatePool {
 public:
  // Errors: kOutOfMemory, kInvalidArgument.
  static Result<StatePool> create(Backend& backend, StateLayout layout, int64_t slots,
                                  int64_t blocks);

  // A slot for an empty sequence. Error kNoCapacity.
  Result<Sequence> acquire();
  // Blocks for `tokens` tokens in all. Error kNoCapacity; the sequence is unchanged then.
  Status reserve(Sequence& sequence, int64_t tokens);
  // Forgets the tokens from `length` on: the state equals that of a sequence that never had them.
  // Error kInvalidArgument when more than layout().rollback tokens would go.
  Status truncate(Sequence& sequence, int64_t length);
  void release(Sequence& sequence);

  const StateLayout& layout() const { return layout_; }
  int64_t free_blocks() const { return static_cast<int64_t>(free_blocks_.size()); }
  int64_t free_slots() const { return static_cast<int64_t>(free_slots_.size()); }
  int64_t bytes() const {
    return slot_count_ * layout_.slot_bytes + block_count_ * layout_.block_bytes;
  }

  std::byte* blocks() const { return block_memory_.get(); }
  std::byte* slots() const { return slot_memory_.get(); }

  // All live bytes of a sequence in a fixed order: window rows that later tokens can read, entries,
  // keys, half-open pairs, drafter rows. Two sequences with equal snapshots continue equally.
  std::vector<std::byte> snapshot(const Sequence& sequence) const;

  // Overwrites everything that no sequence owns with 0xFF (tests: a reader of stale bytes sees
  // NaN).
  void poison_free_memory();

 private:
  StatePool(StateLayout layout, Backend::Buffer slots, Backend::Buffer blocks, int64_t slot_count,
            int64_t block_count);

  StateLayout layout_;
  Backend::Buffer slot_memory_;
  Backend::Buffer block_memory_;
  int64_t slot_count_ = 0;
  int64_t block_count_ = 0;
  std::vector<int64_t> free_slots_;
  std::vector<int32_t> free_blocks_;
};

}  // namespace tidemill
