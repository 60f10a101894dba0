// What tests of this room share: a layout of a few bytes per block, and token lists.
#pragma once

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/reference_backend.h"
#include "state/prefix_cache.h"
#include "state/state_pool.h"

namespace tidemill {

// Two layers before a decoder of one, one drafter stage, one cache of ratio 1; window 32.
inline StateLayout tiny_layout() {
  StateLayout layout;
  layout.window = {RowKind::kF32, 1};
  layout.entry = {RowKind::kF32, 1};
  layout.key = {RowKind::kF32, 1};
  layout.sources = {{.ratio = 1, .rows_per_block = kBlockTokens, .key_offset = 512}};
  layout.block_bytes = 1024;
  layout.window_tokens = 32;
  layout.rollback = 6;
  layout.reach = 6;
  layout.ring_rows = 38;
  layout.pending_rows = 8;
  layout.ring_offset = {0, 192, 384};
  layout.saved_layers = 2;
  layout.draft_ring_offset = {576};
  layout.slot_bytes = 768;
  return layout;
}

inline StatePool tiny_pool(int64_t slots, int64_t blocks) {
  static ThreadTeam team(1);
  static ReferenceBackend backend(team, Rounding{});
  StatePool pool = std::move(*StatePool::create(backend, tiny_layout(), slots, blocks));
  pool.set_poison(true);
  pool.poison_free_memory();
  return pool;
}

inline std::vector<int32_t> random_tokens(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& id : tokens) id = static_cast<int32_t>(random() % 50000);
  return tokens;
}

// Stands for a forward pass: each row written is a function of all tokens up to its own, so equal
// bytes mean equal histories. Appends the tokens.
inline Status compute(StatePool& pool, Sequence& sequence, std::span<const int32_t> tokens) {
  const StateLayout& layout = pool.layout();
  CHECK_OK(pool.reserve(sequence, sequence.length() + static_cast<int64_t>(tokens.size())));
  uint32_t hash = 1;
  for (const int32_t id : sequence.tokens) hash = hash * 31 + static_cast<uint32_t>(id);
  for (const int32_t id : tokens) {
    hash = hash * 31 + static_cast<uint32_t>(id);
    const int64_t p = sequence.length();
    std::byte* block = pool.block(sequence.blocks[static_cast<size_t>(p / kBlockTokens)]).data();
    std::byte* slot = pool.slot(sequence.slot).data();
    const auto write = [&](std::byte* to, uint32_t salt) {
      const uint32_t value = hash ^ salt;
      std::memcpy(to, &value, sizeof(value));
    };
    write(block + p % kBlockTokens * 4, 0);
    write(block + 512 + p % kBlockTokens * 4, 0x55555555);
    for (const int64_t ring : layout.ring_offset) {
      write(slot + ring + p % layout.ring_rows * 4, static_cast<uint32_t>(ring));
    }
    for (const int64_t ring : layout.draft_ring_offset) {
      write(slot + ring + p % layout.ring_rows * 4, static_cast<uint32_t>(ring));
    }
    sequence.tokens.push_back(id);
  }
  return {};
}

inline TokenView view(const std::vector<int32_t>& tokens) { return {tokens, {}}; }
inline std::span<const int32_t> part(const std::vector<int32_t>& tokens, int64_t begin,
                                     int64_t end) {
  return std::span(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

// A pool with a prefix cache, and the life of a request on them.
struct Reuser {
  explicit Reuser(int64_t slots = 4, int64_t blocks = 32, WindowOptions windows = {})
      : pool(std::make_unique<StatePool>(tiny_pool(slots, blocks))), cache(*pool, windows) {}

  // Runs the input from the longest hit on, in steps that end at block boundaries; publishes and
  // saves as an engine does.
  Sequence run(const std::vector<int32_t>& tokens, const KeyChain& chain) {
    Sequence sequence = std::move(*pool->acquire());
    PrefixHit hit = cache.lookup(view(tokens), chain, {}, now);
    text = hit.text;
    reason = hit.reason;
    hit_tokens = hit.length;
    cache.adopt(std::move(hit), view(tokens), sequence);
    const auto end = static_cast<int64_t>(tokens.size());
    while (sequence.length() < end) {
      const int64_t begin = sequence.length();
      const int64_t stop = std::min(end, (begin / kBlockTokens + 1) * kBlockTokens);
      status = compute(*pool, sequence, part(tokens, begin, stop));
      if (!status) return sequence;
      cache.publish(sequence, sequence.length(), chain);
      if (stop % kBlockTokens == 0) status = cache.save_windows(sequence, stop, chain, now);
    }
    return sequence;
  }

  std::unique_ptr<StatePool> pool;
  PrefixCache cache;
  Clock::time_point now = Clock::time_point{} + std::chrono::hours(1);
  Status status;
  // Of the last run.
  int64_t hit_tokens = 0;
  MissReason reason = MissReason::kNone;
  std::string text;
};

inline KeyChain shared_chain(int bits = 128) {
  return KeyChain({.weights = "w", .text = "t", .layout = tiny_layout().fingerprint()}, bits);
}

}  // namespace tidemill
