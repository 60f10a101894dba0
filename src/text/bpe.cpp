#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace tidemill {
namespace {

constexpr int32_t kNoMerge = -1;
constexpr size_t kEnd = SIZE_MAX;  // no neighbour

}  // namespace

BytePairEncoder::BytePairEncoder(const std::array<int32_t, 256>& byte_ids,
                                 std::vector<Merge> merges)
    : byte_ids_(byte_ids),
      merges_(std::move(merges)),
      slots_(std::bit_ceil(2 * merges_.size() + 1), kNoMerge) {}

Result<BytePairEncoder> BytePairEncoder::build(const std::array<int32_t, 256>& byte_ids,
                                               std::vector<Merge> merges) {
  BytePairEncoder encoder(byte_ids, std::move(merges));
  const size_t mask = encoder.slots_.size() - 1;
  for (size_t rank = 0; rank < encoder.merges_.size(); ++rank) {
    const Merge& merge = encoder.merges_[rank];
    size_t slot = encoder.home_slot(merge.left, merge.right);
    for (; encoder.slots_[slot] != kNoMerge; slot = (slot + 1) & mask) {
      const Merge& other = encoder.merges_[encoder.slots_[slot]];
      if (other.left == merge.left && other.right == merge.right) {
        return fail(ErrorCode::kTokenizer, "merges {} and {} are the same pair of tokens",
                    encoder.slots_[slot], rank);
      }
    }
    encoder.slots_[slot] = static_cast<int32_t>(rank);
  }
  return encoder;
}

size_t BytePairEncoder::home_slot(int32_t left, int32_t right) const {
  // Fibonacci hashing: the high bits of the product depend on all bits of the pair.
  const uint64_t pair =
      static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  return (pair * 0x9E3779B97F4A7C15u >> 32) & (slots_.size() - 1);
}

int32_t BytePairEncoder::rank(int32_t left, int32_t right) const {
  const size_t mask = slots_.size() - 1;
  for (size_t slot = home_slot(left, right); slots_[slot] != kNoMerge; slot = (slot + 1) & mask) {
    const Merge& merge = merges_[slots_[slot]];
    if (merge.left == left && merge.right == right) return slots_[slot];
  }
  return kNoMerge;
}

void BytePairEncoder::encode(std::string_view piece, Scratch& scratch,
                             std::vector<int32_t>& ids) const {
  auto& symbols = scratch.symbols_;
  auto& heap = scratch.heap_;
  symbols.clear();
  heap.clear();

  const auto rate_pair = [&](size_t position) {
    auto& symbol = symbols[position];
    symbol.rank = symbol.next == kEnd ? kNoMerge : rank(symbol.id, symbols[symbol.next].id);
    return symbol.rank != kNoMerge;
  };

  for (size_t i = 0; i < piece.size(); ++i) {
    symbols.push_back({byte_ids_[static_cast<uint8_t>(piece[i])], kNoMerge, i == 0 ? kEnd : i - 1,
                       i + 1 == piece.size() ? kEnd : i + 1});
  }
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (rate_pair(i)) heap.push_back({symbols[i].rank, i});
  }
  std::make_heap(heap.begin(), heap.end());

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const auto [best, position] = heap.back();
    heap.pop_back();
    auto& left = symbols[position];
    if (left.rank != best) continue;  // one side has been merged since

    auto& right = symbols[left.next];
    left.id = merges_[best].result;
    left.next = right.next;
    right.rank = kNoMerge;
    if (left.next != kEnd) symbols[left.next].previous = position;
    for (const size_t changed : {left.previous, position}) {
      if (changed != kEnd && rate_pair(changed)) {
        heap.push_back({symbols[changed].rank, changed});
        std::push_heap(heap.begin(), heap.end());
      }
    }
  }

  if (symbols.empty()) return;
  for (size_t i = 0; i != kEnd; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace tidemill
