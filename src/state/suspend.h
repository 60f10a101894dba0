// Preemption by host snapshot: a whole sequence leaves the pool and comes back later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "state/state_pool.h"

namespace tidemill {

// State of a sequence outside the pool. A value: dropping it is cancelling the request.
struct SuspendedSequence {
  Sequence sequence;  // without slot and blocks
  std::vector<std::byte> slot;
  std::vector<std::byte> blocks;  // those that hold tokens, one after the other

  int64_t bytes() const { return static_cast<int64_t>(slot.size() + blocks.size()); }
};

// Bytes of host memory that suspend() would take.
int64_t suspended_bytes(const StatePool& pool, const Sequence& sequence);
// Copies the state out, or into the slot and the blocks of `to`, which must be as many: the parts
// of suspend() and resume() that touch memory, for the thread that writes it.
SuspendedSequence copy_out(const StatePool& pool, const Sequence& sequence);
void copy_in(const StatePool& pool, const SuspendedSequence& suspended, const Sequence& to);

// Copies the state out and releases the sequence. No step that writes it may be in flight. Blocks
// that are published stay cached in the pool as long as there is room.
SuspendedSequence suspend(StatePool& pool, Sequence& sequence);
// A sequence in the same state, byte for byte; publish it again to share blocks that are still
// cached. Error kNoCapacity: nothing has changed.
Result<Sequence> resume(StatePool& pool, const SuspendedSequence& suspended);

}  // namespace tidemill
