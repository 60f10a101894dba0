#include "forward/step_input.h"

#include <algorithm>
#include <cassert>

namespace tidemill {
namespace {

struct Builder {
  const Config& config;
  const EngramHash& engram;
  const StateLayout& layout;
  StepInput& in;

  int64_t slot_begin(const StepItem& item) const { return item.sequence->slot * layout.slot_bytes; }

  // A set's row for the token at `position`; nothing below `floor` is visible to it.
  void add_row(RowSet& rows, const StepItem& item, int64_t sequence, int64_t position,
               int64_t floor, bool store) const {
    ++rows.count;
    rows.position.push_back(position);
    rows.sequence.push_back(static_cast<int32_t>(sequence));
    const int64_t begin = std::max({int64_t{0}, floor, position - layout.window_tokens + 1});
    rows.window_begin.push_back(std::min(begin, position + 1));
    rows.window_end.push_back(position + 1);
    rows.ring_store.push_back(
        store ? slot_begin(item) + position % layout.ring_rows * layout.window.bytes() : -1);
    for (int64_t ratio = 1; ratio <= 2; ++ratio) {
      rows.visible[ratio].push_back((position + 1) / ratio);
    }
  }

  void add_entries(EntrySet& set, const StepItem& item, int64_t sequence, int64_t position,
                   int64_t row, int64_t start, int64_t end) const {
    const int64_t ratio = set.ratio;
    if (ratio > 1) {
      const bool keep = position >= end - layout.pending_rows;
      set.pending_store.push_back(
          keep ? slot_begin(item) + position % layout.pending_rows * layout.pending_row_bytes : -1);
    }
    // The last token of a group decides. With a hit that is a multiple of every ratio no group lies
    // across its end; one that does is not in the cache and is completed here.
    if ((position + 1) % ratio != 0 || position < item.sequence->adopted) return;
    const int64_t first = position + 1 - ratio;
    set.position.push_back(first);
    set.last_row.push_back(row);
    set.first_row.push_back(first >= start ? row - (ratio - 1) : -1);
    set.pending_offset.push_back(slot_begin(item) +
                                 first % layout.pending_rows * layout.pending_row_bytes);
    const int64_t j = first / ratio;
    const int64_t per_block = kBlockTokens / ratio;
    const int64_t block =
        in.block_table[static_cast<size_t>(in.block_begin[sequence] + j / per_block)];
    const int64_t base = block * layout.block_bytes;
    set.entry_store.push_back(base + j % per_block * layout.entry.bytes());
    set.key_store.push_back(base + j % per_block * layout.key.bytes());
  }

  void add_engram(const StepItem& item, int64_t position, int64_t start) const {
    const int64_t image = config.image_token_id;
    const auto& old = item.sequence->tokens;
    std::vector<int32_t> newest_first;
    for (int64_t p = position; p >= 0 && p >= position - engram.look_back(); --p) {
      const int32_t id =
          p >= start ? item.tokens[static_cast<size_t>(p - start)] : old[static_cast<size_t>(p)];
      newest_first.push_back(id == image ? -1 : id);
    }
    const int64_t columns = config.engram_columns();
    for (size_t table = 0; table < in.engram_rows.size(); ++table) {
      auto& rows = in.engram_rows[table];
      rows.resize(rows.size() + static_cast<size_t>(columns));
      engram.rows(static_cast<int64_t>(table), newest_first, rows.data() + rows.size() - columns);
    }
  }

  void add_item(const StepItem& item, int64_t sequence, ReplayForm form) const {
    const Sequence& s = *item.sequence;
    const int64_t start = s.length();
    const int64_t end = start + static_cast<int64_t>(item.tokens.size());
    const int64_t first_row = in.all.count;
    const int64_t encoder_begin = encoder_floor(s);
    const int64_t decoder_begin = decoder_floor(s);
    assert(start >= encoder_begin && (start >= s.adopted || s.replay_from >= 0));
    const bool drafts = !layout.draft_ring_offset.empty();

    in.ring_offset.push_back(slot_begin(item));
    in.block_begin.push_back(static_cast<int64_t>(in.block_table.size()));
    in.block_table.append(s.blocks.begin(), s.blocks.end());
    in.all.step_start.push_back(start);
    in.all.step_row.push_back(first_row);
    in.tail.step_start.push_back(std::max(start, decoder_begin));
    in.tail.step_row.push_back(in.tail.count);

    for (int64_t p = start; p < end; ++p) {
      const int64_t row = first_row + p - start;
      const int32_t id = item.tokens[static_cast<size_t>(p - start)];
      in.ids.push_back(id);
      // Earlier rows of a long chunk would be overwritten in the ring by later ones.
      const bool store = p >= end - layout.ring_rows;
      add_row(in.all, item, sequence, p, encoder_begin, store);
      for (EntrySet& set : in.entries) add_entries(set, item, sequence, p, row, start, end);
      add_engram(item, p, start);

      const bool in_tail = p >= decoder_begin;
      if (in_tail || form == ReplayForm::kMask) {
        in.tail_row.push_back(row);
        add_row(in.tail, item, sequence, p, decoder_begin, store && in_tail);
      }
      if (!in_tail) continue;
      const int64_t tail_row = in.tail.count - 1;
      if (item.logits == Logits::kAll || (item.logits == Logits::kLast && p == end - 1)) {
        in.logits_row.push_back(tail_row);
      }
      if (drafts && store) {
        in.draft_row.push_back(tail_row);
        in.draft_position.push_back(p);
        in.draft_store.push_back(in.tail.ring_store.back());
      }
    }
    if (form == ReplayForm::kMask) {
      in.tail.step_start.back() = start;
      in.tail.step_row.back() = first_row;
    }
  }

  void narrow_engram() const {
    const int64_t columns = config.engram_columns();
    for (size_t table = 0; table < in.engram_rows.size(); ++table) {
      for (const int64_t row : in.tail_row) {
        const auto begin = in.engram_rows[table].begin() + row * columns;
        in.engram_tail_rows[table].append(begin, begin + columns);
      }
    }
  }

  void mark_images(RowSet& rows, const StepArray<int64_t>* row_of) const {
    const int64_t image = config.image_token_id;
    if (std::find(in.ids.begin(), in.ids.end(), image) == in.ids.end()) return;
    rows.image.resize(static_cast<size_t>(rows.count));
    for (size_t t = 0; t < rows.image.size(); ++t) {
      const size_t row = row_of != nullptr ? static_cast<size_t>((*row_of)[t]) : t;
      rows.image[t] = in.ids[row] == image;
    }
  }
};

}  // namespace

void RowSet::clear() {
  count = 0;
  for (auto* array : {&position, &window_begin, &window_end, &step_start, &step_row, &ring_store,
                      &visible[1], &visible[2]}) {
    array->clear();
  }
  sequence.clear();
  image.clear();
}

void RowSet::list(std::vector<StagedArray>& arrays) {
  for (auto* array : {&position, &window_begin, &window_end, &step_start, &step_row, &ring_store,
                      &visible[1], &visible[2]}) {
    arrays.push_back(array->staged());
  }
  arrays.push_back(sequence.staged());
  arrays.push_back(image.staged());
}

std::vector<StagedArray> StepInput::staged() {
  std::vector<StagedArray> arrays;
  all.list(arrays);
  if (cut) tail.list(arrays);
  for (EntrySet& set : entries) {
    for (auto* array : {&set.position, &set.last_row, &set.first_row, &set.pending_offset,
                        &set.entry_store, &set.key_store, &set.pending_store}) {
      arrays.push_back(array->staged());
    }
  }
  for (auto* array : {&ids, &tail_row, &logits_row, &draft_row, &draft_position, &draft_store,
                      &ring_offset, &block_begin}) {
    arrays.push_back(array->staged());
  }
  for (auto& rows : engram_rows) arrays.push_back(rows.staged());
  for (auto& rows : engram_tail_rows) arrays.push_back(rows.staged());
  arrays.push_back(block_table.staged());
  return arrays;
}

void build_step_input(const Config& config, const EngramHash& engram, const StateLayout& layout,
                      ReplayForm form, std::span<const StepItem> items, StepInput& in) {
  in.all.clear();
  in.tail.clear();
  for (auto* array : {&in.ids, &in.tail_row, &in.logits_row, &in.draft_row, &in.draft_position,
                      &in.draft_store, &in.ring_offset, &in.block_begin}) {
    array->clear();
  }
  in.block_table.clear();
  in.entries.assign(2, {});
  in.entries[0].ratio = 1;
  in.entries[1].ratio = 2;
  in.engram_rows.assign(config.engram_layer_ids.size(), {});
  in.engram_tail_rows.assign(config.engram_layer_ids.size(), {});

  const Builder builder{config, engram, layout, in};
  for (size_t i = 0; i < items.size(); ++i) {
    builder.add_item(items[i], static_cast<int64_t>(i), form);
  }
  // Even when every token of this step is in the tail, keys below the decoder's floor stay hidden.
  in.cut = std::any_of(items.begin(), items.end(), [](const StepItem& item) {
    return decoder_floor(*item.sequence) > encoder_floor(*item.sequence);
  });
  if (in.cut) builder.narrow_engram();
  builder.mark_images(in.all, nullptr);
  builder.mark_images(in.tail, &in.tail_row);
  for (RowSet* rows : {&in.all, &in.tail}) {
    for (size_t ratio = 1; ratio <= 2; ++ratio) {
      const auto& visible = rows->visible[ratio];
      rows->most_visible[ratio] = visible.empty() ? 0 : *std::ranges::max_element(visible);
    }
  }
}

}  // namespace tidemill
