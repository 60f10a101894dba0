#include "state/block_pool.h"

#include <cassert>

namespace tidemill {

BlockPool::BlockPool(int64_t count) : blocks_(static_cast<size_t>(count)) {
  free_.reserve(blocks_.size());
  for (int64_t i = count; i-- > 0;) free_.push_back(static_cast<int32_t>(i));
}

BlockPool::Allocation BlockPool::allocate() {
  Allocation result;
  if (free_.empty()) {
    result.block = evict();
    if (result.block < 0) return result;
    result.evicted = true;
    assert(free_.back() == result.block);
  }
  result.block = free_.back();
  free_.pop_back();
  Block& b = at(result.block);
  b.state = BlockState::kInUse;
  b.references = 1;
  return result;
}

int32_t BlockPool::evict() {
  const int32_t block = oldest_;
  if (block < 0) return -1;
  unlink(block);
  at(block).published = false;
  at(block).state = BlockState::kFree;
  free_.push_back(block);
  return block;
}

void BlockPool::add_reference(int32_t block) {
  Block& b = at(block);
  assert(b.state != BlockState::kFree);
  if (b.state == BlockState::kCached) unlink(block);
  if (b.state == BlockState::kReturning) --returning_count_;
  b.state = BlockState::kInUse;
  ++b.references;
}

bool BlockPool::drop_reference(int32_t block, int64_t last_reader) {
  Block& b = at(block);
  assert(b.state == BlockState::kInUse && b.references > 0);
  if (--b.references > 0) return false;
  if (last_reader == 0) {
    assert(returning_.empty());  // or the order of eviction would be wrong
    return settle(block);
  }
  b.state = BlockState::kReturning;
  b.ticket = ++tickets_;
  ++returning_count_;
  returning_.push_back({last_reader, b.ticket, block});
  return false;
}

void BlockPool::finish_step(int64_t step, std::vector<int32_t>& freed) {
  while (!returning_.empty() && returning_.front().last_reader <= step) {
    const Return back = returning_.front();
    returning_.pop_front();
    const Block& b = at(back.block);
    if (b.state != BlockState::kReturning || b.ticket != back.ticket) continue;
    --returning_count_;
    if (settle(back.block)) freed.push_back(back.block);
  }
}

void BlockPool::pin(int32_t block) {
  add_reference(block);
  ++at(block).pins;
  ++pinned_;
}

bool BlockPool::unpin(int32_t block, int64_t last_reader) {
  assert(at(block).pins > 0);
  --at(block).pins;
  --pinned_;
  return drop_reference(block, last_reader);
}

// Nobody refers to the block and no step reads it: it is free, or cached if it was published.
bool BlockPool::settle(int32_t block) {
  Block& b = at(block);
  if (!b.published) {
    b.state = BlockState::kFree;
    free_.push_back(block);
    return true;
  }
  b.state = BlockState::kCached;
  b.older = newest_;
  b.newer = -1;
  (newest_ < 0 ? oldest_ : at(newest_).newer) = block;
  newest_ = block;
  ++cached_;
  return false;
}

void BlockPool::unlink(int32_t block) {
  Block& b = at(block);
  (b.older < 0 ? oldest_ : at(b.older).newer) = b.newer;
  (b.newer < 0 ? newest_ : at(b.newer).older) = b.older;
  b.older = b.newer = -1;
  --cached_;
}

}  // namespace tidemill
