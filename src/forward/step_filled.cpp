// Steps of few sizes, so that backends meet the same ones again.
#include <algorithm>
#include <bit>

#include "forward/step_input.h"

namespace tidemill {
namespace {

// From 4096 on, four bounds from one power of two to the next.
int64_t rounded_up(int64_t bound) {
  const auto step = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bound)) / 4);
  return bound <= 4096 ? 4096 : (bound + step - 1) / step * step;
}

}  // namespace

bool StepInput::uniform() const {
  return !cut && logits_row.count() == all.count && entries_of(1).count() == all.count;
}

void StepInput::fill_up(int64_t rows) {
  const auto size = static_cast<size_t>(rows);
  const auto repeat_last = [&](auto&... array) { (array.resize(size, array.back()), ...); };
  const auto repeat = [&](int64_t value, auto&... array) { (array.resize(size, value), ...); };

  for (auto& table : engram_rows) {
    const size_t columns = table.size() / ids.size();
    for (size_t i = table.size(); i < size * columns; ++i) table.push_back(table[i - columns]);
  }
  repeat_last(ids, all.position, all.sequence, all.window_begin, all.window_end, all.visible[1],
              all.visible[2]);
  if (!all.image.empty()) repeat_last(all.image);
  repeat(-1, all.ring_store);
  all.count = rows;
  for (int64_t& bound : all.most_visible) bound = rounded_up(bound);

  // Of sequences there are as many as rows, or fewer.
  repeat_last(all.step_start, all.step_row, ring_offset, block_begin);
  // Entries of pairs are between none and one for each row: further ones pair the first row with
  // itself.
  for (EntrySet& set : entries) {
    repeat(0, set.position, set.last_row, set.first_row, set.pending_offset);
    repeat(-1, set.entry_store, set.key_store);
    if (set.ratio > 1) repeat(-1, set.pending_store);
  }
  repeat(0, tail_row, logits_row);
  if (draft_row.empty()) return;
  repeat(0, draft_row, draft_position);
  repeat(-1, draft_store);
}

}  // namespace tidemill
