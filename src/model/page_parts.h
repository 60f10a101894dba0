// Which memory node the pages of a copy of the weights are for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/numa.h"

namespace tidemill {

// Every tensor is divided by NodeShares, and a page belongs to the part that has its middle. Pages
// have the size of huge ones: what touches one first decides about all of it.
class PageParts {
 public:
  static constexpr size_t kPage = size_t{2} << 20;

  // `nodes` outlives this.
  PageParts(std::span<const std::byte> memory, const NodeShares& nodes)
      : nodes_(nodes),
        first_(address(memory.data()) / kPage),
        parts_((address(memory.data()) + memory.size()) / kPage - first_ + 1,
               nodes.parts().size() - 1) {
    parts_.front() = 0;
  }

  // Tensors lie in the memory and do not overlap.
  void add(std::span<const std::byte> tensor) {
    const auto size = static_cast<int64_t>(tensor.size());
    const uintptr_t begin = address(tensor.data());
    for (size_t part = 0; part < nodes_.parts().size(); ++part) {
      const size_t end = page_from(begin + static_cast<size_t>(nodes_.begin(size, part + 1)));
      size_t page = page_from(begin + static_cast<size_t>(nodes_.begin(size, part)));
      for (; page < end; ++page) parts_[page - first_] = part;
    }
  }

  // Of the page with this byte.
  size_t part_of(const std::byte* byte) const { return parts_[address(byte) / kPage - first_]; }
  static size_t bytes_to_page_end(const std::byte* byte) { return kPage - address(byte) % kPage; }

 private:
  static uintptr_t address(const std::byte* byte) { return reinterpret_cast<uintptr_t>(byte); }
  // The first page whose middle is not before this address.
  static size_t page_from(uintptr_t place) { return (place + kPage / 2 - 1) / kPage; }

  const NodeShares& nodes_;
  size_t first_;  // page, counted from address 0
  std::vector<size_t> parts_;
};

}  // namespace tidemill
