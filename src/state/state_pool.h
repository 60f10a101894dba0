// Memory of all sequences: a pool of blocks and a pool of slots, and the handles into them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "base/result.h"
#include "ops/backend.h"
#include "state/block_pool.h"
#include "state/content_key.h"
#include "state/layout.h"
#include "state/step_fence.h"

namespace tidemill {

// One mutable timeline: tokens and handles into a StatePool. Owns no memory of the pool itself;
// hand it back with StatePool::release. To continue it twice, StatePool::fork: a copy of this
// struct shares its slot.
struct Sequence {
  std::vector<int32_t> tokens;    // every token whose state is in the caches
  std::vector<ImageSpan> images;  // what placeholders among them stand for
  int64_t slot = -1;
  std::vector<int32_t> blocks;
  // Bounded replay: decoder layers (and the drafter) hold no window rows below this position.
  int64_t decoder_floor = 0;

  // Tokens whose global KV was there before the sequence (a prefix hit). Steps never rewrite their
  // entries, and truncate never goes below.
  int64_t adopted = 0;
  // Encoder replay: tokens [replay_from, adopted) are still to be run for their windows only, and
  // no layer holds window rows below replay_from. State from here on is approximate. -1: none.
  int64_t replay_from = -1;
  // Content keys of its leading published blocks; kept by PrefixCache.
  std::vector<ContentKey> keys;
  // The longest it was before a truncate: what was undone has overwritten old window rows.
  int64_t high_water = 0;

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  // Forgets the tokens from `length` on, and nothing else: what StatePool::truncate does apart from
  // blocks and keys. For a copy of the sequence that belongs to a device.
  void rewind(int64_t length);
};

// Not thread safe. Blocks and slots that are handed out again hold old bytes: every reader is
// bounded by positions, never by contents.
//
// Several steps may be in flight between begin_step and finish_step. What is given up meanwhile
// comes back only after the last step begun until then, since that step may still read it. Callers
// that run a step to its end before they change anything need no steps.
class StatePool {
 public:
  // The backend must outlive it. Errors: kOutOfMemory, kInvalidArgument.
  static Result<StatePool> create(Backend& backend, StateLayout layout, int64_t slots,
                                  int64_t blocks);

  // A slot for an empty sequence. Error kNoCapacity.
  Result<Sequence> acquire();
  // Blocks for `tokens` tokens in all, those that a step will write being the sequence's alone.
  // Error kNoCapacity; the sequence is unchanged then.
  Status reserve(Sequence& sequence, int64_t tokens);
  // How many blocks that reserve() would take.
  int64_t blocks_needed(const Sequence& sequence, int64_t tokens) const;
  // Forgets the tokens from `length` on: the state equals that of a sequence that never had them.
  // Error kInvalidArgument when more than layout().rollback tokens would go, or adopted ones.
  Status truncate(Sequence& sequence, int64_t length);
  // Gives up blocks behind the first `blocks`, adopted ones excepted: reserved for tokens that did
  // not come.
  void trim(Sequence& sequence, int64_t blocks);
  void release(Sequence& sequence);

  // Blocks that hold tokens from `position` on become the sequence's alone: shared or published
  // ones are copied. Done by reserve() for the tokens it adds. Error kNoCapacity, nothing changed.
  Status make_writable(Sequence& sequence, int64_t position);
  // A second sequence in the same state. Shares complete blocks, copies the last one and the slot,
  // so no step that writes the original may be in flight. Error kNoCapacity.
  Result<Sequence> fork(const Sequence& sequence);

  // ---- steps in flight; numbered from 1, finished in order
  int64_t begin_step() { return fence_.begin_step(); }
  void finish_step(int64_t step);

  // ---- blocks that outlive their sequence; for PrefixCache
  void publish(int32_t block) { pool_.publish(block); }
  void add_reference(int32_t block) { pool_.add_reference(block); }
  void drop_reference(int32_t block);
  // In one direction only: pins of a path are taken first block first, given up last block first.
  void pin(int32_t block) { pool_.pin(block); }
  void unpin(int32_t block);
  // The sequence uses `block`, which has the same content, instead of its block `number`.
  void replace_block(Sequence& sequence, int64_t number, int32_t block);
  // Gives up the oldest cached block. False: none is cached.
  bool evict_block();
  // Blocks that lost published content since the last call, oldest first. Their numbers may be in
  // use again already.
  std::vector<int32_t> take_evicted() { return std::exchange(evicted_, {}); }

  const StateLayout& layout() const { return layout_; }
  // What reserve() can hand out: free blocks, and cached ones at the price of their content.
  int64_t free_blocks() const { return pool_.free_count() + pool_.cached_count(); }
  // What comes back when the steps in flight finish.
  int64_t returning_blocks() const { return pool_.returning_count(); }
  int64_t returning_slots() const { return static_cast<int64_t>(returning_slots_.size()); }
  int64_t free_slots() const { return static_cast<int64_t>(free_slots_.size()); }
  int64_t slot_count() const { return slot_count_; }
  const BlockPool& block_pool() const { return pool_; }
  int64_t bytes() const {
    return slot_count_ * layout_.slot_bytes + pool_.count() * layout_.block_bytes;
  }

  // Memory of the backend. read() and write() copy it from and to the host's.
  std::byte* blocks() const { return block_memory_.get(); }
  std::byte* slots() const { return slot_memory_.get(); }
  std::span<std::byte> block(int32_t number) const {
    return {blocks() + number * layout_.block_bytes, static_cast<size_t>(layout_.block_bytes)};
  }
  std::span<std::byte> slot(int64_t number) const {
    return {slots() + number * layout_.slot_bytes, static_cast<size_t>(layout_.slot_bytes)};
  }
  void read(std::span<const std::byte> from, std::byte* to) const {
    backend_->copy(to, from.data(), static_cast<int64_t>(from.size()));
  }
  void write(std::span<std::byte> to, const std::byte* from) const {
    backend_->copy(to.data(), from, static_cast<int64_t>(to.size()));
  }
  std::vector<std::byte> read(std::span<const std::byte> from) const {
    std::vector<std::byte> bytes(from.size());
    read(from, bytes.data());
    return bytes;
  }

  // All live bytes of a sequence in a fixed order: window rows that later tokens can read, entries,
  // keys, half-open pairs, drafter rows. Two sequences with equal snapshots continue equally.
  std::vector<std::byte> snapshot(const Sequence& sequence) const;

  // Fills memory with 0xFF at the moment it can be handed out again: a reader of stale bytes sees
  // NaN. On in debug builds.
  void set_poison(bool poison) { poison_ = poison; }
  // Does so once for everything that is free now.
  void poison_free_memory();

 private:
  StatePool(Backend& backend, StateLayout layout, Backend::Buffer slots, Backend::Buffer blocks,
            int64_t slot_count, int64_t block_count);

  void copy_within(std::span<const std::byte> from, std::span<std::byte> to);
  void fill(std::span<std::byte> memory);

  bool is_exclusive(int32_t block) const {
    return pool_.references(block) == 1 && !pool_.published(block);
  }
  Status check_capacity(int64_t needed, int64_t tokens) const;
  int32_t take_block();
  // The newest step that may read what is given up now; 0: none.
  int64_t last_reader() const { return fence_.idle() ? 0 : fence_.last_begun(); }
  void free_slot(int64_t slot);

  struct ReturningSlot {
    int64_t last_reader = 0;
    int64_t slot = -1;
  };

  Backend* backend_;
  StateLayout layout_;
  Backend::Buffer slot_memory_;
  Backend::Buffer block_memory_;
  int64_t slot_count_ = 0;
  BlockPool pool_;
  StepFence fence_;
  std::vector<int64_t> free_slots_;
  std::deque<ReturningSlot> returning_slots_;
  std::vector<int32_t> evicted_;
#ifdef NDEBUG
  bool poison_ = false;
#else
  bool poison_ = true;
#endif
};

}  // namespace tidemill
