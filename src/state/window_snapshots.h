// Host copies of window rows at block boundaries: what a prefix hit needs besides global blocks.
// Short-lived: bounded in bytes, oldest use first, and dropped after a time without use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "state/content_key.h"
#include "state/state_pool.h"

namespace tidemill {

// The rows [position - window, position) of every ring that is saved.
struct WindowSnapshot {
  int64_t position = 0;
  bool full = false;  // decoder layers and drafter too; otherwise layout.saved_layers only
  std::vector<std::byte> rows;
};
// Whoever holds one keeps it from being dropped.
using WindowHandle = std::shared_ptr<const WindowSnapshot>;

struct WindowOptions {
  int64_t budget_bytes = int64_t{1} << 30;
  Clock::duration lifetime = std::chrono::minutes(10);  // without use
};

// Not thread safe.
class WindowSnapshots {
 public:
  WindowSnapshots(const StateLayout& layout, WindowOptions options);

  int64_t snapshot_bytes(int64_t position, bool full) const;

  // Copies the rows before `position`, a multiple of a block, under `key`. The sequence may have
  // passed it by up to layout.reach tokens, undone ones included; the copy is taken between two
  // steps that write the sequence. A snapshot that is there already counts as used, and is
  // replaced if only the new one is full.
  // Errors: kInvalidArgument (the rows are overwritten or were never there), kNoCapacity.
  Status save(const StatePool& pool, const Sequence& sequence, int64_t position,
              const ContentKey& key, bool full, Clock::time_point now);
  // save() in its two halves, for rows that another thread writes: copy() belongs to that thread
  // and touches nothing but the sequence's slot; insert() to the owner of this object. Null: the
  // rows are overwritten or were never there.
  static std::shared_ptr<WindowSnapshot> copy(const StatePool& pool, const Sequence& sequence,
                                              int64_t position, bool full);
  // Error kNoCapacity.
  Status insert(const ContentKey& key, std::shared_ptr<WindowSnapshot> snapshot,
                Clock::time_point now);
  // Null: none. Counts as a use.
  WindowHandle find(const ContentKey& key, Clock::time_point now);
  // Writes the rows into the sequence's slot; a snapshot that is not full raises decoder_floor.
  static void restore(const WindowSnapshot& snapshot, const StatePool& pool, Sequence& sequence);

  void drop(const ContentKey& key);
  void drop_expired(Clock::time_point now);
  void clear();

  int64_t bytes() const { return bytes_; }
  int64_t count() const { return static_cast<int64_t>(entries_.size()); }
  int64_t dropped() const { return dropped_; }  // for lack of room or of use

 private:
  struct Entry {
    ContentKey key;
    std::shared_ptr<WindowSnapshot> snapshot;
    Clock::time_point used;
  };
  using Entries = std::list<Entry>;  // latest use first

  bool keep_existing(const ContentKey& key, bool full, Clock::time_point now);
  bool make_room(int64_t bytes);
  void erase(Entries::iterator entry);

  StateLayout layout_;
  WindowOptions options_;
  Entries entries_;
  std::unordered_map<ContentKey, Entries::iterator, ContentKeyHash> by_key_;
  int64_t bytes_ = 0;
  int64_t dropped_ = 0;
};

}  // namespace tidemill
