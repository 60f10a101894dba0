// The fast lightning indexer: scores on tensor cores, then exact selection.
#include <algorithm>
#include <bit>

#include "ops/cuda/launch.h"
#include "ops/index_select/cuda_index.h"

namespace tidemill::cuda {
namespace {

// Whether these are the released sizes, and the cache lies as copies of 16 bytes want it.
bool fits(const IndexSelectArgs& a) {
  const auto aligned = [](const void* p, int64_t add) {
    return (reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(add)) % 16 == 0;
  };
  const PagedRows& keys = a.keys;
  const bool pool = a.pool_in != nullptr || a.pool_out != nullptr;
  return a.heads == kIndexHeads && keys.format.kind == RowKind::kQ4Index &&
         keys.format.width == kIndexDim && a.topk <= kMostSelected &&
         (!pool || (a.pool_block == kPoolBlock && a.pool_topk <= kMostSelected)) &&
         a.most_visible <= int64_t{1} << 30 && keys.rows_per_block >= 32 &&
         keys.rows_per_block <= 1 << 20 &&
         std::has_single_bit(static_cast<uint64_t>(keys.rows_per_block)) &&
         aligned(keys.base, keys.offset) && keys.block_bytes % 16 == 0 && aligned(a.q.data, 0) &&
         a.q.stride % 4 == 0;
}

}  // namespace

void index_select(Launch& l, const IndexSelectArgs& a) {
  if (l.plain || !fits(a)) return plain::index_select(l, a);
  if (a.q.count == 0) return;
  ScoreRows rows = {.args = a};
  // A pool that holds every entry need not be gathered.
  rows.gathered =
      a.pool_in != nullptr && a.pool_out == nullptr && a.most_visible > a.pool_topk * kPoolBlock;
  const int64_t numbers = rows.gathered ? a.pool_topk * kPoolBlock : a.most_visible;
  rows.stride = std::max<int64_t>((numbers + 63) / 64 * 64, 64);
  constexpr int64_t kScores = 64 << 20;  // of a pass
  const int64_t pass = std::clamp<int64_t>(kScores / rows.stride, 1, 65535);
  rows.count = std::min(pass, a.q.count);
  const Selected which = a.pool_in != nullptr ? Selected::kInPool : Selected::kEntries;
  const int64_t bytes = rows.count * rows.stride * int64_t{sizeof(uint16_t)};
  void* memory = l.products.take(bytes, l.stream);
  if (memory == nullptr) return;
  rows.data = static_cast<uint16_t*>(memory);
  for (; rows.first < a.q.count; rows.first += rows.count) {
    rows.count = std::min(pass, a.q.count - rows.first);
    index_scores(l.stream, rows, index_range(rows));
    const auto best = [&](Selected what, int64_t k, int32_t* out) {
      index_best(l.stream, rows, what, k, out + rows.first * k, index_best_blocks(rows, what));
    };
    if (a.pool_out != nullptr) best(Selected::kBlocks, a.pool_topk, a.pool_out);
    best(which, a.topk, a.selected);
  }
}

}  // namespace tidemill::cuda
