#include "state/suspend.h"

#include <algorithm>

namespace tidemill {
namespace {

int64_t tokens_in_blocks(const Sequence& sequence) {
  return std::max(sequence.length(), sequence.adopted);
}

}  // namespace

int64_t suspended_bytes(const StatePool& pool, const Sequence& sequence) {
  const StateLayout& layout = pool.layout();
  return layout.slot_bytes + layout.blocks_for(tokens_in_blocks(sequence)) * layout.block_bytes;
}

SuspendedSequence copy_out(const StatePool& pool, const Sequence& sequence) {
  SuspendedSequence suspended;
  suspended.slot = pool.read(pool.slot(sequence.slot));
  const int64_t count = pool.layout().blocks_for(tokens_in_blocks(sequence));
  suspended.blocks.resize(static_cast<size_t>(count * pool.layout().block_bytes));
  for (int64_t i = 0; i < count; ++i) {
    pool.read(pool.block(sequence.blocks[static_cast<size_t>(i)]),
              suspended.blocks.data() + i * pool.layout().block_bytes);
  }
  suspended.sequence = sequence;
  suspended.sequence.slot = -1;
  suspended.sequence.blocks.clear();
  suspended.sequence.keys.clear();
  return suspended;
}

void copy_in(const StatePool& pool, const SuspendedSequence& suspended, const Sequence& to) {
  pool.write(pool.slot(to.slot), suspended.slot.data());
  const std::byte* from = suspended.blocks.data();
  const std::byte* end = from + suspended.blocks.size();
  for (size_t i = 0; from < end; ++i) {
    const auto block = pool.block(to.blocks[i]);
    pool.write(block, from);
    from += block.size();
  }
}

SuspendedSequence suspend(StatePool& pool, Sequence& sequence) {
  SuspendedSequence suspended = copy_out(pool, sequence);
  pool.release(sequence);
  return suspended;
}

Result<Sequence> resume(StatePool& pool, const SuspendedSequence& suspended) {
  TRY(Sequence sequence, pool.acquire());
  if (auto status = pool.reserve(sequence, tokens_in_blocks(suspended.sequence)); !status) {
    pool.release(sequence);
    return tl::unexpected(std::move(status).error());
  }
  copy_in(pool, suspended, sequence);
  const int64_t slot = sequence.slot;
  std::vector<int32_t> blocks = std::move(sequence.blocks);
  sequence = suspended.sequence;
  sequence.slot = slot;
  sequence.blocks = std::move(blocks);
  return sequence;
}

}  // namespace tidemill
