// Names of cached content: a chain of digests over everything that a block's bytes depend on.
//
// The key of a block is SHA-256, cut to 128 bits, of the key of the block before it, its 128
// token ids and the identity of the images they stand for. The chain starts at a root made from
// the weights, the formats, the order of products and the tenant. No clock, address or process seed
// enters, so a key is the same in every process, after a restart and on another machine; without
// the tenant's salt nobody can compute or guess one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace tidemill {

using Digest = std::array<uint8_t, 32>;
Digest sha256(std::span<const std::byte> data);

struct ContentKey {
  std::array<uint8_t, 16> bytes{};

  bool operator==(const ContentKey&) const = default;
  std::string hex() const;
};
struct ContentKeyHash {
  size_t operator()(const ContentKey& key) const {
    size_t value = 0;
    std::memcpy(&value, key.bytes.data(), sizeof(value));  // a digest is uniform already
    return value;
  }
};

// Tokens [begin, begin + tokens) are placeholders for an image: its pixels decide the state.
struct ImageSpan {
  int64_t begin = 0;
  int64_t tokens = 0;
  Digest digest{};

  bool operator==(const ImageSpan&) const = default;
};

// The part of each span inside tokens [begin, end). Its `begin` counts from the start of the image
// and is -offset where the image starts inside: equal parts mean equal content.
std::vector<ImageSpan> image_parts(std::span<const ImageSpan> images, int64_t begin, int64_t end);

// What state depends on besides the tokens before it. Two identities share nothing.
struct StateIdentity {
  std::string weights;  // digest or revision of the checkpoint
  std::string text;     // tokenizer and prompt template
  std::string layout;   // StateLayout::fingerprint(): of formats and of the order of products
  std::string tenant;   // secret salt of the namespace; empty: shared by all
  // State computed after an encoder replay may be published. Never shared with exact state.
  bool approximate = false;
};

// The keys of one namespace. A value; cheap to copy.
class KeyChain {
 public:
  // `bits` below 128 is for tests that want collisions; it must be 1 to 128.
  explicit KeyChain(const StateIdentity& identity, int bits = 128);

  const ContentKey& root() const { return root_; }  // always 128 bits
  bool approximate() const { return approximate_; }
  // Key of the block with these tokens and image parts that follows the block `parent`.
  ContentKey next(const ContentKey& parent, std::span<const int32_t> tokens,
                  std::span<const ImageSpan> images) const;

 private:
  ContentKey root_;
  int bits_ = 128;
  bool approximate_ = false;
};

}  // namespace tidemill
