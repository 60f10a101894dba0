// Who uses which block. Numbers only: the bytes belong to StatePool, the content to PrefixIndex.
//
//   free --allocate--> in use --last reference dropped--> returning --its steps finished--+
//    ^                    ^                                   |                           |
//    |                    +------- reference (a prefix hit) --+--------- cached <---------+
//    +---------------------------- unpublished ---------------+            |  published
//    +------------------- handed out again by allocate (evicted) ----------+
//
// Cached blocks are evicted in the order in which they were given up. Whoever holds a block of a
// published path holds all blocks before it, and drops the last block first: so a parent is never
// evicted before its children.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace tidemill {

enum class BlockState : uint8_t { kFree, kInUse, kReturning, kCached };

// Not thread safe.
class BlockPool {
 public:
  explicit BlockPool(int64_t count);

  struct Allocation {
    int32_t block = -1;    // -1: none is free or cached
    bool evicted = false;  // it held published content until now
  };
  // A block with one reference. Evicts the oldest cached block when none is free.
  Allocation allocate();
  void add_reference(int32_t block);  // of a block that is not free
  // Gives one reference up. The last one sends the block back behind step `last_reader`, which is
  // 0 if no step is in flight. True if the block is free now: its bytes are nobody's.
  bool drop_reference(int32_t block, int64_t last_reader);
  // Blocks that waited for `step` or an earlier one become free or cached; the free ones are
  // appended to `freed`.
  void finish_step(int64_t step, std::vector<int32_t>& freed);

  // A pinned block counts one more reference.
  void pin(int32_t block);
  bool unpin(int32_t block, int64_t last_reader);  // as drop_reference

  // Its content can be found by key, so it stays when nobody uses it.
  void publish(int32_t block) { blocks_[static_cast<size_t>(block)].published = true; }
  // Evicts the oldest cached block without a new owner; -1: none is cached.
  int32_t evict();

  BlockState state(int32_t block) const { return at(block).state; }
  int32_t references(int32_t block) const { return at(block).references; }
  bool published(int32_t block) const { return at(block).published; }

  int64_t count() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t free_count() const { return static_cast<int64_t>(free_.size()); }
  int64_t cached_count() const { return cached_; }
  int64_t returning_count() const { return returning_count_; }
  int64_t in_use_count() const {
    return count() - free_count() - cached_count() - returning_count();
  }
  int64_t pinned_count() const { return pinned_; }
  const std::vector<int32_t>& free_list() const { return free_; }

 private:
  struct Block {
    BlockState state = BlockState::kFree;
    bool published = false;
    int32_t references = 0;
    int32_t pins = 0;
    int64_t ticket = 0;  // of its latest way back; older entries of returning_ are void
    int32_t newer = -1;  // neighbours in the list of cached blocks
    int32_t older = -1;
  };
  struct Return {
    int64_t last_reader = 0;
    int64_t ticket = 0;
    int32_t block = -1;
  };

  const Block& at(int32_t block) const { return blocks_[static_cast<size_t>(block)]; }
  Block& at(int32_t block) { return blocks_[static_cast<size_t>(block)]; }
  bool settle(int32_t block);
  void unlink(int32_t block);

  std::vector<Block> blocks_;
  std::vector<int32_t> free_;
  std::deque<Return> returning_;
  int64_t returning_count_ = 0;
  int64_t tickets_ = 0;
  int32_t oldest_ = -1;  // of the cached blocks
  int32_t newest_ = -1;
  int64_t cached_ = 0;
  int64_t pinned_ = 0;
};

}  // namespace tidemill
