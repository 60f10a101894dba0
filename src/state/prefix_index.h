// Which published block holds which content: a tree of blocks by content key.
//
// A key alone never decides: the tokens, the images and the place in the tree of a block are
// compared too, so a collision of keys is a miss and not another request's state.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "state/content_key.h"
#include "state/layout.h"

namespace tidemill {

// A token list with the images that its placeholders stand for.
struct TokenView {
  std::span<const int32_t> tokens;
  std::span<const ImageSpan> images;

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  std::span<const int32_t> block(int64_t number) const {
    return tokens.subspan(static_cast<size_t>(number * kBlockTokens), kBlockTokens);
  }
  std::vector<ImageSpan> block_images(int64_t number) const {
    return image_parts(images, number * kBlockTokens, (number + 1) * kBlockTokens);
  }
};

// Why no more of an input was reused.
enum class MissReason : uint8_t {
  kNone,            // as much as can be reused was
  kTooShort,        // the input is shorter than the smallest reusable prefix
  kNothingCached,   // no block continues the match with even one more token
  kDifferentToken,  // a cached block continues it with other tokens, or another image
  kEvicted,         // the next block was here and had to go
  kOtherNamespace,  // the first block is here, for other weights, formats or another tenant
  kCollision,       // the next key is taken by other content
  kWindowMissing,   // blocks match further than any window snapshot (set by PrefixCache)
};
inline constexpr size_t kMissReasons = 8;
std::string_view to_string(MissReason reason);  // as in metrics: "different_token"

// Not thread safe.
class PrefixIndex {
 public:
  explicit PrefixIndex(int64_t blocks);

  struct Match {
    std::vector<int32_t> blocks;
    std::vector<ContentKey> keys;  // of `blocks`
    MissReason end = MissReason::kNone;
    // First token that a cached block could not serve; kDifferentToken: the first that differs.
    int64_t position = 0;
  };
  // The longest published path along the first `blocks` blocks of the input.
  // `known`: keys of the input's first blocks, if the caller keeps them; longer afterwards.
  Match match(TokenView input, int64_t blocks, const KeyChain& chain,
              std::vector<ContentKey>* known = nullptr) const;

  // The block that already holds this content after `parent` (-1: at the root); nothing: none, and
  // `key` is free to take; an Error kInternal: the key belongs to other content.
  Result<std::optional<int32_t>> find(const ContentKey& key, const KeyChain& chain, int32_t parent,
                                      TokenView input, int64_t number) const;
  // `block` holds block `number` of the input from now on. The key is not taken.
  void insert(const ContentKey& key, const KeyChain& chain, int32_t parent, TokenView input,
              int64_t number, int32_t block);
  // The block is about to lose its content: forgets it and returns its key. It has no children.
  ContentKey remove(int32_t block);

  int64_t size() const { return static_cast<int64_t>(by_key_.size()); }

 private:
  // Keys of the last evicted blocks, so that a miss can say "evicted".
  static constexpr size_t kRemembered = 4096;
  // Children that the search for the first differing token looks at, newest first.
  static constexpr int kComparedChildren = 64;

  struct Node {
    ContentKey key;
    ContentKey root;   // the namespace, never shortened
    ContentKey plain;  // of a first block: its key without namespace
    int32_t parent = -1;
    int32_t first_child = -1;
    int32_t next = -1;  // siblings
    int32_t previous = -1;
    std::vector<int32_t> tokens;
    std::vector<ImageSpan> images;
  };
  using ByKey = std::unordered_map<ContentKey, int32_t, ContentKeyHash>;

  const Node& at(int32_t block) const { return nodes_[static_cast<size_t>(block)]; }
  Node& at(int32_t block) { return nodes_[static_cast<size_t>(block)]; }
  int32_t first_child(int32_t parent, const KeyChain& chain) const;
  void explain(TokenView input, const KeyChain& chain, const ContentKey& next, Match& match) const;

  std::vector<Node> nodes_;  // by block number
  ByKey by_key_;
  ByKey first_child_of_root_;
  ByKey plain_count_;  // first blocks by their key without namespace: how many
  ByKey evicted_count_;
  std::vector<ContentKey> evicted_;  // a ring
  size_t evicted_next_ = 0;
};

}  // namespace tidemill
