// Reuse of state between requests: publishes what sequences have computed, and finds the longest
// prefix of a new input whose state is there.
//
// A hit needs two things: the global blocks up to a boundary (in the pool, found by content) and
// the window rows before it (a snapshot on the host). Given both, the new sequence is in the very
// state of one that computed the prefix, bit for bit.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "state/prefix_index.h"
#include "state/state_pool.h"
#include "state/window_snapshots.h"

namespace tidemill {

// What the caller will recompute besides the tokens after the hit.
enum class Reuse : uint8_t {
  // Nothing: all windows are restored. Up to L - 1 of L tokens can be a hit.
  kExact,
  // The decoder layers run on a tail of the input (bounded replay), as they would without a hit:
  // windows of the layers before them suffice, and the hit ends before the tail.
  kDecoderTail,
  // As kDecoderTail; and if windows are missing, the last `window` tokens of the hit are run again
  // through the encoder. Approximate.
  kEncoderReplay,
};

struct LookupOptions {
  Reuse reuse = Reuse::kExact;
  int64_t tail = 0;  // tokens of the decoder's tail; 0: layout.recomputed_tail()
  // Take the blocks at once. False: the hit is good until the pool next hands out or evicts a
  // block; PrefixCache::hold takes them then, for those who plan with many hits and use a few.
  bool hold = true;
  // Keys of the input's first blocks, kept by the caller between lookups of the same input: a
  // lookup then hashes no token twice. May be null.
  std::vector<ContentKey>* known_keys = nullptr;
};

// The outcome of a lookup. Once held it has a reference to each of its blocks, so nothing of it is
// evicted before it is adopted or destroyed. The pool must outlive it.
class PrefixHit {
 public:
  PrefixHit() = default;
  PrefixHit(PrefixHit&& other) noexcept { *this = std::move(other); }
  PrefixHit& operator=(PrefixHit&& other) noexcept;
  ~PrefixHit() { abandon(); }

  int64_t asked = 0;         // tokens of the input
  int64_t length = 0;        // tokens whose state is restored completely
  int64_t adopted = 0;       // tokens whose global blocks are there; more than length in a replay
  int64_t replay_from = -1;  // first token of an encoder replay up to `adopted`; -1: none
  int64_t matched = 0;       // tokens whose global blocks are there, windows or not
  int64_t missed_at = 0;     // first token that was not found; kDifferentToken: that differs
  MissReason reason = MissReason::kNone;
  // One line for the operator's log: what was hit and why no more. It can tell of other tenants'
  // content, so it is not for clients.
  std::string text;

  const std::vector<int32_t>& blocks() const { return blocks_; }
  bool has_windows() const { return windows_ != nullptr; }
  bool held() const { return held_; }
  void abandon();

 private:
  friend class PrefixCache;
  StatePool* pool_ = nullptr;
  bool held_ = false;
  std::vector<int32_t> blocks_;
  std::vector<ContentKey> keys_;
  WindowHandle windows_;
};

// Of hits that were held: a lookup that came to nothing, because its request could not start yet,
// is not counted.
struct PrefixCacheStats {
  int64_t lookups = 0;
  int64_t hits = 0;
  int64_t asked_tokens = 0;
  int64_t hit_tokens = 0;
  int64_t replays = 0;
  int64_t published_blocks = 0;
  int64_t duplicate_blocks = 0;  // computed again although they were there
  int64_t collisions = 0;
  int64_t evicted_blocks = 0;
  std::array<int64_t, kMissReasons> by_reason{};
};

// Not thread safe: lives on the thread that plans steps. The pool must outlive it, and have no
// second PrefixCache.
class PrefixCache {
 public:
  PrefixCache(StatePool& pool, WindowOptions windows);

  // The longest reusable prefix of the input.
  PrefixHit lookup(TokenView input, const KeyChain& chain, LookupOptions options = {},
                   Clock::time_point now = Clock::now());
  // Takes the blocks of a hit that was looked up without.
  void hold(PrefixHit& hit);
  // Puts a sequence that was just acquired into the state of the hit: blocks, windows, tokens. In
  // decoder-tail modes the caller then sets decoder_floor as for an input without a hit.
  void adopt(PrefixHit hit, TokenView input, Sequence& sequence);

  // Makes the complete blocks of the first `committed` tokens findable: tokens whose step has
  // finished and which are never undone. Where the same content is there already, the sequence
  // changes over to it and gives its own block up; not while a fork shares that block, so publish
  // before forking. State after an encoder replay is published in approximate namespaces only.
  // Returns how many of the sequence's blocks are published.
  int64_t publish(Sequence& sequence, int64_t committed, const KeyChain& chain);
  // Saves the windows before `position`, whose block is published; call when a sequence reaches or
  // has just passed it (WindowSnapshots::save). Saves all windows that are exact: decoder layers
  // and drafter are left out under bounded replay.
  Status save_windows(const Sequence& sequence, int64_t position, const KeyChain& chain,
                      Clock::time_point now = Clock::now());

  // The same for rows that WindowSnapshots::copy took on another thread. May they be full?
  static bool saves_all_windows(const Sequence& sequence) {
    return sequence.decoder_floor == 0 && sequence.replay_from < 0;
  }
  Status insert_windows(const Sequence& sequence, std::shared_ptr<WindowSnapshot> snapshot,
                        const KeyChain& chain, Clock::time_point now = Clock::now());

  // Forgets everything that no sequence uses.
  void clear();

  PrefixCacheStats stats();
  const WindowSnapshots& windows() const { return windows_; }
  int64_t indexed_blocks();
  // For the log at start, e.g. "smallest reusable prefix: 129 tokens (...)".
  std::string rule(LookupOptions options = {}) const;

 private:
  void forget_evicted();
  Result<ContentKey> window_key(const Sequence& sequence, int64_t position,
                                const KeyChain& chain) const;
  PrefixHit choose(PrefixIndex::Match match, int64_t length, LookupOptions options,
                   Clock::time_point now);

  StatePool* pool_;
  PrefixIndex index_;
  WindowSnapshots windows_;
  PrefixCacheStats stats_;
};

}  // namespace tidemill
