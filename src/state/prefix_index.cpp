#include "state/prefix_index.h"

#include <algorithm>
#include <cassert>

namespace tidemill {
namespace {

// Names the tokens of a first block whatever the namespace.
ContentKey plain_key(TokenView input) {
  static const KeyChain chain(StateIdentity{});
  return chain.next(chain.root(), input.block(0), input.block_images(0));
}

int64_t common_tokens(std::span<const int32_t> a, std::span<const int32_t> b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

void subtract(std::unordered_map<ContentKey, int32_t, ContentKeyHash>& counts,
              const ContentKey& key) {
  const auto found = counts.find(key);
  if (found != counts.end() && --found->second == 0) counts.erase(found);
}

}  // namespace

std::string_view to_string(MissReason reason) {
  constexpr std::array<std::string_view, kMissReasons> kNames = {
      "none",    "too_short",       "nothing_cached", "different_token",
      "evicted", "other_namespace", "collision",      "window_missing"};
  return kNames[static_cast<size_t>(reason)];
}

PrefixIndex::PrefixIndex(int64_t blocks) : nodes_(static_cast<size_t>(blocks)) {}

Result<std::optional<int32_t>> PrefixIndex::find(const ContentKey& key, const KeyChain& chain,
                                                 int32_t parent, TokenView input,
                                                 int64_t number) const {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return std::nullopt;
  const Node& node = at(found->second);
  if (node.parent == parent && node.root == chain.root() &&
      std::ranges::equal(node.tokens, input.block(number)) &&
      node.images == input.block_images(number)) {
    return found->second;
  }
  return fail(ErrorCode::kInternal, "key {} belongs to other content than block {} of this input",
              key.hex(), number);
}

PrefixIndex::Match PrefixIndex::match(TokenView input, int64_t blocks, const KeyChain& chain,
                                      std::vector<ContentKey>* known) const {
  Match match;
  if (blocks < 1) {
    match.end = MissReason::kTooShort;
    return match;
  }
  ContentKey key = chain.root();
  int32_t parent = -1;
  for (int64_t i = 0; i < blocks; ++i) {
    const auto number = static_cast<size_t>(i);
    if (known != nullptr && number < known->size()) {
      key = (*known)[number];
    } else {
      key = chain.next(key, input.block(i), input.block_images(i));
      if (known != nullptr) known->push_back(key);
    }
    const auto found = find(key, chain, parent, input, i);
    if (!found || !*found) {
      match.position = i * kBlockTokens;
      match.end = found ? MissReason::kNothingCached : MissReason::kCollision;
      if (found) explain(input, chain, key, match);
      return match;
    }
    parent = **found;
    match.blocks.push_back(parent);
    match.keys.push_back(key);
  }
  match.position = blocks * kBlockTokens;
  return match;
}

void PrefixIndex::explain(TokenView input, const KeyChain& chain, const ContentKey& next,
                          Match& match) const {
  if (evicted_count_.contains(next)) {
    match.end = MissReason::kEvicted;
    return;
  }
  const auto number = static_cast<int64_t>(match.blocks.size());
  const auto wanted = input.block(number);
  int64_t common = 0;
  int32_t child = first_child(match.blocks.empty() ? -1 : match.blocks.back(), chain);
  // Below the root any child differs somewhere; at the root it may be another text altogether.
  if (child >= 0 && number > 0) match.end = MissReason::kDifferentToken;
  for (int i = 0; i < kComparedChildren && child >= 0; ++i, child = at(child).next) {
    int64_t here = common_tokens(wanted, at(child).tokens);
    if (here == kBlockTokens) {  // then an image differs
      const auto images = input.block_images(number);
      here = images.empty() ? 0 : std::max<int64_t>(0, -images.front().begin);
      match.end = MissReason::kDifferentToken;
    }
    common = std::max(common, here);
  }
  if (common > 0) match.end = MissReason::kDifferentToken;
  match.position += common;
  if (match.end == MissReason::kNothingCached && number == 0 &&
      plain_count_.contains(plain_key(input))) {
    match.end = MissReason::kOtherNamespace;
  }
}

int32_t PrefixIndex::first_child(int32_t parent, const KeyChain& chain) const {
  if (parent >= 0) return at(parent).first_child;
  const auto found = first_child_of_root_.find(chain.root());
  return found == first_child_of_root_.end() ? -1 : found->second;
}

void PrefixIndex::insert(const ContentKey& key, const KeyChain& chain, int32_t parent,
                         TokenView input, int64_t number, int32_t block) {
  assert(!by_key_.contains(key));
  Node& node = at(block);
  const auto tokens = input.block(number);
  node = {.key = key,
          .root = chain.root(),
          .parent = parent,
          .next = first_child(parent, chain),
          .tokens = {tokens.begin(), tokens.end()},
          .images = input.block_images(number)};
  if (node.next >= 0) at(node.next).previous = block;
  if (parent >= 0) {
    at(parent).first_child = block;
  } else {
    first_child_of_root_[chain.root()] = block;
    node.plain = plain_key(input);
    ++plain_count_[node.plain];
  }
  by_key_.emplace(key, block);
}

ContentKey PrefixIndex::remove(int32_t block) {
  Node& node = at(block);
  assert(node.first_child < 0 && "a parent goes after its children");
  const ContentKey key = node.key;
  by_key_.erase(key);
  if (node.next >= 0) at(node.next).previous = node.previous;
  if (node.previous >= 0) {
    at(node.previous).next = node.next;
  } else if (node.parent >= 0) {
    at(node.parent).first_child = node.next;
  } else if (node.next >= 0) {
    first_child_of_root_[node.root] = node.next;
  } else {
    first_child_of_root_.erase(node.root);
  }
  if (node.parent < 0) subtract(plain_count_, node.plain);
  node = {};

  ++evicted_count_[key];
  if (evicted_.size() < kRemembered) {
    evicted_.push_back(key);
  } else {
    subtract(evicted_count_, evicted_[evicted_next_]);
    evicted_[evicted_next_] = key;
    evicted_next_ = (evicted_next_ + 1) % kRemembered;
  }
  return key;
}

}  // namespace tidemill
