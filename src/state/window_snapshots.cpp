#include "state/window_snapshots.h"

#include <algorithm>
#include <cassert>
#include <cstring>

namespace tidemill {
namespace {

// Calls copy(offset inside a slot, bytes) for every saved row, in the order of a snapshot.
template <typename Copy>
void each_row(const StateLayout& layout, int64_t position, bool full, Copy&& copy) {
  const int64_t bytes = layout.window.bytes();
  const auto ring = [&](int64_t offset) {
    for (int64_t p = std::max<int64_t>(0, position - layout.window_tokens); p < position; ++p) {
      copy(offset + p % layout.ring_rows * bytes, bytes);
    }
  };
  const size_t layers = full ? layout.ring_offset.size() : static_cast<size_t>(layout.saved_layers);
  for (size_t i = 0; i < layers; ++i) ring(layout.ring_offset[i]);
  if (!full) return;
  for (const int64_t offset : layout.draft_ring_offset) ring(offset);
}

}  // namespace

WindowSnapshots::WindowSnapshots(const StateLayout& layout, WindowOptions options)
    : layout_(layout), options_(options) {}

int64_t WindowSnapshots::snapshot_bytes(int64_t position, bool full) const {
  const int64_t rings =
      full ? static_cast<int64_t>(layout_.ring_offset.size() + layout_.draft_ring_offset.size())
           : layout_.saved_layers;
  return rings * std::min(position, layout_.window_tokens) * layout_.window.bytes();
}

std::shared_ptr<WindowSnapshot> WindowSnapshots::copy(const StatePool& pool,
                                                      const Sequence& sequence, int64_t position,
                                                      bool full) {
  const StateLayout& layout = pool.layout();
  assert(layout.ring_rows >= layout.window_tokens + layout.reach);
  const int64_t reached = std::max(sequence.length(), sequence.high_water);
  const int64_t begin = std::max<int64_t>(0, position - layout.window_tokens);
  if (position < 1 || position % kBlockTokens != 0 || position > sequence.length() ||
      reached > position + layout.reach || begin < sequence.replay_from ||
      (full && begin < sequence.decoder_floor)) {
    return nullptr;
  }
  auto snapshot = std::make_shared<WindowSnapshot>();
  snapshot->position = position;
  snapshot->full = full;
  const auto slot = pool.slot(sequence.slot);
  each_row(layout, position, full, [&](int64_t offset, int64_t count) {
    const auto rows = slot.subspan(static_cast<size_t>(offset), static_cast<size_t>(count));
    snapshot->rows.resize(snapshot->rows.size() + rows.size());
    pool.read(rows, snapshot->rows.data() + snapshot->rows.size() - rows.size());
  });
  return snapshot;
}

// Is a snapshot there that is as good? Then it counts as used.
bool WindowSnapshots::keep_existing(const ContentKey& key, bool full, Clock::time_point now) {
  const auto there = by_key_.find(key);
  if (there == by_key_.end()) return false;
  there->second->used = now;
  entries_.splice(entries_.begin(), entries_, there->second);
  return there->second->snapshot->full || !full;
}

Status WindowSnapshots::insert(const ContentKey& key, std::shared_ptr<WindowSnapshot> snapshot,
                               Clock::time_point now) {
  drop_expired(now);
  if (keep_existing(key, snapshot->full, now)) return {};
  const auto bytes = static_cast<int64_t>(snapshot->rows.size());
  if (!make_room(bytes)) {
    return fail(ErrorCode::kNoCapacity,
                "a window snapshot of {} bytes does not fit: {} of {} bytes are held by hits that "
                "are being restored",
                bytes, bytes_, options_.budget_bytes);
  }
  drop(key);  // the one that is not full
  entries_.push_front({key, std::move(snapshot), now});
  by_key_[key] = entries_.begin();
  bytes_ += bytes;
  return {};
}

Status WindowSnapshots::save(const StatePool& pool, const Sequence& sequence, int64_t position,
                             const ContentKey& key, bool full, Clock::time_point now) {
  auto snapshot = copy(pool, sequence, position, full);
  if (snapshot == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                "no window can be saved at token {} of a sequence that has reached {}: boundaries "
                "are multiples of {}, passed by {} at most",
                position, std::max(sequence.length(), sequence.high_water), kBlockTokens,
                layout_.reach);
  }
  return insert(key, std::move(snapshot), now);
}

WindowHandle WindowSnapshots::find(const ContentKey& key, Clock::time_point now) {
  drop_expired(now);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  found->second->used = now;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->snapshot;
}

void WindowSnapshots::restore(const WindowSnapshot& snapshot, const StatePool& pool,
                              Sequence& sequence) {
  const std::byte* from = snapshot.rows.data();
  const auto slot = pool.slot(sequence.slot);
  each_row(pool.layout(), snapshot.position, snapshot.full, [&](int64_t offset, int64_t count) {
    pool.write(slot.subspan(static_cast<size_t>(offset), static_cast<size_t>(count)), from);
    from += count;
  });
  if (!snapshot.full) {
    sequence.decoder_floor = std::max(sequence.decoder_floor, snapshot.position);
  }
}

// Makes room by dropping what was not used for longest and nobody holds.
bool WindowSnapshots::make_room(int64_t bytes) {
  if (bytes > options_.budget_bytes) return false;
  for (auto entry = entries_.end(); bytes_ + bytes > options_.budget_bytes;) {
    if (entry == entries_.begin()) return false;
    --entry;
    if (entry->snapshot.use_count() > 1) continue;
    const auto next = std::next(entry);
    erase(entry);
    entry = next;
    ++dropped_;
  }
  return true;
}

void WindowSnapshots::erase(Entries::iterator entry) {
  bytes_ -= static_cast<int64_t>(entry->snapshot->rows.size());
  by_key_.erase(entry->key);
  entries_.erase(entry);
}

void WindowSnapshots::drop(const ContentKey& key) {
  if (const auto found = by_key_.find(key); found != by_key_.end()) erase(found->second);
}

void WindowSnapshots::drop_expired(Clock::time_point now) {
  while (!entries_.empty() && now - entries_.back().used > options_.lifetime &&
         entries_.back().snapshot.use_count() == 1) {
    erase(std::prev(entries_.end()));
    ++dropped_;
  }
}

void WindowSnapshots::clear() {
  entries_.clear();
  by_key_.clear();
  bytes_ = 0;
}

}  // namespace tidemill
