#include "state/prefix_cache.h"

#include <algorithm>
#include <cassert>

namespace tidemill {
namespace {

std::string reason_text(const PrefixHit& hit, int64_t matched, int64_t smallest) {
  switch (hit.reason) {
    case MissReason::kNone:
      return "";
    case MissReason::kTooShort:
      return fmt::format(": shorter than the smallest reusable prefix of {} tokens", smallest);
    case MissReason::kNothingCached:
      return fmt::format(": nothing cached goes on after token {}", hit.missed_at);
    case MissReason::kDifferentToken:
      return fmt::format(": token {} differs from what is cached", hit.missed_at);
    case MissReason::kEvicted:
      return fmt::format(": the block of tokens {} to {} was evicted", hit.missed_at,
                         hit.missed_at + kBlockTokens - 1);
    case MissReason::kOtherNamespace:
      return ": the same text is cached for other weights, formats or another tenant";
    case MissReason::kCollision:
      return fmt::format(": the key of the block at token {} is taken by other content",
                         hit.missed_at);
    case MissReason::kWindowMissing:
      return fmt::format(": blocks are there up to token {}, but no windows after token {}",
                         matched, hit.length);
  }
  return "";
}

}  // namespace

PrefixHit& PrefixHit::operator=(PrefixHit&& other) noexcept {
  if (this == &other) return *this;
  abandon();
  length = std::exchange(other.length, 0);
  adopted = std::exchange(other.adopted, 0);
  replay_from = std::exchange(other.replay_from, -1);
  asked = other.asked;
  matched = other.matched;
  missed_at = other.missed_at;
  reason = other.reason;
  text = std::move(other.text);
  pool_ = other.pool_;
  held_ = std::exchange(other.held_, false);
  blocks_ = std::exchange(other.blocks_, {});
  keys_ = std::exchange(other.keys_, {});
  windows_ = std::exchange(other.windows_, nullptr);
  return *this;
}

void PrefixHit::abandon() {
  for (size_t i = blocks_.size(); held_ && i-- > 0;) pool_->drop_reference(blocks_[i]);
  held_ = false;
  blocks_.clear();
  keys_.clear();
  windows_ = nullptr;
  length = adopted = 0;
  replay_from = -1;
}

PrefixCache::PrefixCache(StatePool& pool, WindowOptions windows)
    : pool_(&pool), index_(pool.block_pool().count()), windows_(pool.layout(), windows) {}

void PrefixCache::forget_evicted() {
  for (const int32_t block : pool_->take_evicted()) {
    // Its windows go too: without the blocks before them they are of no use.
    windows_.drop(index_.remove(block));
    ++stats_.evicted_blocks;
  }
}

PrefixHit PrefixCache::lookup(TokenView input, const KeyChain& chain, LookupOptions options,
                              Clock::time_point now) {
  forget_evicted();
  const StateLayout& layout = pool_->layout();
  const int64_t length = input.length();
  // The last token is computed in any case: its logits are wanted.
  int64_t limit = length - 1;
  int64_t smallest = layout.smallest_reusable_prefix();
  if (options.reuse != Reuse::kExact) {
    const int64_t tail = std::max(options.tail, layout.recomputed_tail());
    limit = length - tail;
    smallest = kBlockTokens + tail;
  }
  PrefixIndex::Match match =
      index_.match(input, std::max<int64_t>(0, limit) / kBlockTokens, chain, options.known_keys);
  const auto matched = static_cast<int64_t>(match.blocks.size()) * kBlockTokens;
  PrefixHit hit = choose(std::move(match), length, options, now);
  hit.matched = matched;
  hit.text =
      fmt::format("hit {} of {} tokens", hit.length, length) + reason_text(hit, matched, smallest);
  if (hit.replay_from >= 0) {
    hit.text += fmt::format("; windows of tokens {} to {} are recomputed", hit.replay_from,
                            hit.adopted - 1);
  }
  hit.asked = length;
  if (options.hold) hold(hit);
  return hit;
}

// The longest part of the match that windows allow.
PrefixHit PrefixCache::choose(PrefixIndex::Match match, int64_t length, LookupOptions options,
                              Clock::time_point now) {
  PrefixHit hit;
  hit.pool_ = pool_;
  hit.reason = match.end;
  hit.missed_at = std::min(match.position, length);
  const size_t matched = match.blocks.size();
  size_t blocks = matched;
  for (; blocks > 0; --blocks) {
    hit.windows_ = windows_.find(match.keys[blocks - 1], now);
    if (hit.windows_ != nullptr && (hit.windows_->full || options.reuse != Reuse::kExact)) break;
    hit.windows_ = nullptr;
  }
  if (blocks < matched) hit.reason = MissReason::kWindowMissing;
  hit.length = hit.adopted = static_cast<int64_t>(blocks) * kBlockTokens;

  const int64_t all = static_cast<int64_t>(matched) * kBlockTokens;
  const int64_t replay_from = all - pool_->layout().window_tokens;
  if (options.reuse == Reuse::kEncoderReplay && replay_from > hit.length) {
    blocks = matched;
    hit.windows_ = nullptr;
    hit.length = hit.replay_from = replay_from;
    hit.adopted = all;
  }
  match.blocks.resize(blocks);
  match.keys.resize(blocks);
  hit.blocks_ = std::move(match.blocks);
  hit.keys_ = std::move(match.keys);
  return hit;
}

void PrefixCache::hold(PrefixHit& hit) {
  if (std::exchange(hit.held_, true)) return;
  for (const int32_t block : hit.blocks_) pool_->add_reference(block);
  ++stats_.lookups;
  stats_.hits += hit.length > 0;
  stats_.asked_tokens += hit.asked;
  stats_.hit_tokens += hit.length;
  stats_.replays += hit.replay_from >= 0;
  ++stats_.by_reason[static_cast<size_t>(hit.reason)];
}

void PrefixCache::adopt(PrefixHit hit, TokenView input, Sequence& sequence) {
  assert(sequence.slot >= 0 && sequence.tokens.empty() && sequence.blocks.empty());
  hold(hit);
  const auto tokens = input.tokens.first(static_cast<size_t>(hit.length));
  sequence.tokens.assign(tokens.begin(), tokens.end());
  sequence.images.assign(input.images.begin(), input.images.end());
  sequence.adopted = hit.adopted;
  sequence.replay_from = hit.replay_from;
  if (hit.windows_ != nullptr) WindowSnapshots::restore(*hit.windows_, *pool_, sequence);
  sequence.blocks = std::exchange(hit.blocks_, {});  // with their references
  hit.held_ = false;
  sequence.keys = std::exchange(hit.keys_, {});
}

int64_t PrefixCache::publish(Sequence& sequence, int64_t committed, const KeyChain& chain) {
  forget_evicted();
  const bool hidden = sequence.replay_from >= 0 && !chain.approximate();
  const int64_t end = std::min(hidden ? sequence.adopted : committed, sequence.length());
  const TokenView input{sequence.tokens, sequence.images};
  for (auto i = static_cast<int64_t>(sequence.keys.size()); i < end / kBlockTokens; ++i) {
    const auto number = static_cast<size_t>(i);
    const ContentKey& before = i == 0 ? chain.root() : sequence.keys[number - 1];
    const int32_t parent = i == 0 ? -1 : sequence.blocks[number - 1];
    const int32_t mine = sequence.blocks[number];
    const ContentKey key = chain.next(before, input.block(i), input.block_images(i));
    const auto there = index_.find(key, chain, parent, input, i);
    if (!there) {
      ++stats_.collisions;
      break;
    }
    if (!*there) {
      index_.insert(key, chain, parent, input, i, mine);
      pool_->publish(mine);
      ++stats_.published_blocks;
    } else if (**there != mine) {
      // A fork that shares `mine` would be left with children whose parent it does not hold.
      if (pool_->block_pool().references(mine) > 1) break;
      pool_->replace_block(sequence, i, **there);
      ++stats_.duplicate_blocks;
    }
    sequence.keys.push_back(key);
  }
  return static_cast<int64_t>(sequence.keys.size());
}

Result<ContentKey> PrefixCache::window_key(const Sequence& sequence, int64_t position,
                                           const KeyChain& chain) const {
  const int64_t number = position / kBlockTokens - 1;
  if (number < 0 || number >= static_cast<int64_t>(sequence.keys.size()) ||
      (sequence.replay_from >= 0 && !chain.approximate())) {
    return fail(ErrorCode::kInvalidArgument,
                "windows at token {} cannot be shared: {} blocks of the sequence are published{}",
                position, sequence.keys.size(),
                sequence.replay_from >= 0 ? " and its windows are approximate" : "");
  }
  return sequence.keys[static_cast<size_t>(number)];
}

Status PrefixCache::save_windows(const Sequence& sequence, int64_t position, const KeyChain& chain,
                                 Clock::time_point now) {
  forget_evicted();
  TRY(const ContentKey key, window_key(sequence, position, chain));
  return windows_.save(*pool_, sequence, position, key, saves_all_windows(sequence), now);
}

Status PrefixCache::insert_windows(const Sequence& sequence,
                                   std::shared_ptr<WindowSnapshot> snapshot, const KeyChain& chain,
                                   Clock::time_point now) {
  forget_evicted();
  TRY(const ContentKey key, window_key(sequence, snapshot->position, chain));
  return windows_.insert(key, std::move(snapshot), now);
}

void PrefixCache::clear() {
  while (pool_->evict_block()) {
  }
  forget_evicted();
  windows_.clear();
}

PrefixCacheStats PrefixCache::stats() {
  forget_evicted();
  return stats_;
}

int64_t PrefixCache::indexed_blocks() {
  forget_evicted();
  return index_.size();
}

std::string PrefixCache::rule(LookupOptions options) const {
  const StateLayout& layout = pool_->layout();
  if (options.reuse == Reuse::kExact) {
    return fmt::format(
        "smallest reusable prefix: {} tokens; hits are multiples of {} and leave the last token to "
        "compute",
        layout.smallest_reusable_prefix(), kBlockTokens);
  }
  const int64_t tail = std::max(options.tail, layout.recomputed_tail());
  return fmt::format(
      "smallest reusable prefix: {} tokens; hits are multiples of {} and leave the decoder's tail "
      "of {} to compute{}",
      kBlockTokens + tail, kBlockTokens, tail,
      options.reuse == Reuse::kEncoderReplay ? " (and a window again, where windows are gone)"
                                             : "");
}

}  // namespace tidemill
