// One step of the batch engine: from a plan to tokens.
#include <algorithm>
#include <cassert>

#include "engine/batch_entry.h"
#include "sample/verify.h"

namespace tidemill {

Capacity BatchEngine::capacity() {
  const StatePool& pool = engine_.pool();
  return {.free_blocks = pool.free_blocks(),
          .free_slots = pool.free_slots(),
          .returning_blocks = pool.returning_blocks(),
          .returning_slots = pool.returning_slots(),
          .prefix_hit = [this](RequestId id) -> PrefixReuse {
            if (!options_.prefix_cache) return {};
            Entry& entry = *entries_.at(id);
            const int64_t tokens = find_prefix(entry);
            const BlockPool& blocks = engine_.pool().block_pool();
            const auto shared = [&](int32_t block) { return blocks.references(block) > 1; };
            return {.tokens = tokens,
                    .shared_blocks = std::count_if(entry.hit.blocks().begin(),
                                                   entry.hit.blocks().end(), shared)};
          }};
}

int64_t BatchEngine::find_prefix(Entry& entry) {
  entry.hit.abandon();
  entry.hit = prefixes_.lookup({.tokens = entry.tokens, .images = {}}, entry.chain);
  return entry.hit.length;
}

Status BatchEngine::start(Entry& entry, const PlanItem& item) {
  TRY(entry.sequence, engine_.pool().acquire());
  if (item.position > 0) {
    prefixes_.adopt(std::move(entry.hit), {.tokens = entry.tokens, .images = {}}, entry.sequence);
  }
  entry.hit.abandon();
  if (entry.sequence.length() != item.position) {
    return fail(ErrorCode::kInternal, "request {} starts at token {}, its prefix has {}", entry.id,
                item.position, entry.sequence.length());
  }
  entry.windows_at = entry.sequence.length() / kBlockTokens * kBlockTokens;
  if (item.start == Start::kFresh) entry.usage.cached_tokens = item.position;
  return {};
}

// What was computed stays in the prefix cache as long as there is room.
void BatchEngine::preempt(Entry& entry) {
  if (entry.on_device()) engine_.pool().release(entry.sequence);
  entry.drafts.clear();
  ++entry.usage.preemptions;
  ++stats_.preemptions;
}

Status BatchEngine::run(const StepPlan& plan, std::vector<Row>& rows) {
  rows.resize(plan.items.size());
  std::vector<Row*> all;
  std::vector<Row*> split;
  for (size_t i = 0; i < rows.size(); ++i) {
    Row& row = rows[i];
    row.item = plan.items[i];
    row.entry = entries_.at(row.item.id).get();
    if (row.item.start != Start::kNone) CHECK_OK(start(*row.entry, row.item));
  }
  for (auto& [id, entry] : entries_) entry->hit.abandon();

  const int64_t rollback = engine_.pool().layout().rollback;
  for (Row& row : rows) {
    Entry& entry = *row.entry;
    assert(entry.sequence.length() == row.item.position);
    const auto from = entry.tokens.begin() + row.item.position;
    if (row.item.decode) {
      row.input = {entry.tokens.back()};
      const auto drafts = std::min(row.item.drafts, static_cast<int64_t>(entry.drafts.size()));
      row.input.insert(row.input.end(), entry.drafts.begin(), entry.drafts.begin() + drafts);
      stats_.decode_rows += static_cast<int64_t>(row.input.size());
    } else {
      row.input.assign(from, from + row.item.tokens);
      stats_.prefill_tokens += row.item.tokens;
    }
    // A prompt's last boundary is worth a cut: its windows are what the next request needs.
    const int64_t end = row.item.position + static_cast<int64_t>(row.input.size());
    const int64_t boundary = end / kBlockTokens * kBlockTokens;
    const bool cut = options_.prefix_cache && !row.item.decode && boundary > row.item.position &&
                     end - boundary > rollback;
    row.first_part = cut ? boundary - row.item.position : static_cast<int64_t>(row.input.size());
    all.push_back(&row);
    if (cut) split.push_back(&row);
  }
  CHECK_OK(run_part(all, true));
  return split.empty() ? Status{} : run_part(split, false);
}

Status BatchEngine::run_part(std::span<Row* const> rows, bool first) {
  std::vector<StepItem> items;
  for (const Row* row : rows) {
    const std::span<const int32_t> input(row->input);
    const auto cut = static_cast<size_t>(row->first_part);
    const bool last = !first || cut == input.size();
    items.push_back({.sequence = &row->entry->sequence,
                     .tokens = first ? input.first(cut) : input.subspan(cut),
                     .logits = !last || !row->item.samples ? Logits::kNone
                               : row->item.decode          ? Logits::kAll
                                                           : Logits::kLast});
  }
  TRY(const StepOutput output, engine_.forward().run(items));
  int64_t at = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    Row& row = *rows[i];
    if (items[i].logits != Logits::kNone) {
      const int64_t count =
          items[i].logits == Logits::kAll ? static_cast<int64_t>(items[i].tokens.size()) : 1;
      row.logits = {output.logits.f32(at), static_cast<size_t>(count * output.logits.width)};
      at += count;
      if (auto sampled = sample(row); !sampled) {
        row.finish = BatchFinish::kError;
        row.error = std::move(sampled).error();
        continue;
      }
    }
    settle(*row.entry);
  }
  return {};
}

// Draws and verifies; leaves the state at the last token but one.
Status BatchEngine::sample(Row& row) {
  Entry& entry = *row.entry;
  const auto width = static_cast<size_t>(engine_.model().config().vocab_size);
  std::span<const int32_t> drafts;
  if (row.item.decode) drafts = std::span<const int32_t>(row.input).subspan(1);
  entry.usage.drafted += static_cast<int64_t>(drafts.size());
  if (entry.matcher) {
    TRY(const int64_t masked, mask_rows(*entry.matcher, drafts, row.logits, mask_));
    drafts = drafts.first(static_cast<size_t>(masked - 1));
  }
  const auto position = static_cast<int64_t>(entry.tokens.size());
  TRY(const Verdict verdict, verify_keyed(sampler_, row.logits.first((drafts.size() + 1) * width),
                                          drafts, entry.request.sampling, entry.history, position));
  entry.usage.accepted += verdict.accepted;
  std::vector<int32_t> drawn(drafts.begin(), drafts.begin() + verdict.accepted);
  drawn.push_back(verdict.next);
  for (const int32_t id : drawn) {
    if (entry.outputs_left() == 0) break;
    if (entry.matcher && !entry.matcher->accept(id)) {
      return fail(ErrorCode::kInternal, "token {} was drawn against the grammar", id);
    }
    if (is_end(entry, id)) {
      row.finish = BatchFinish::kStop;
      break;
    }
    if (entry.outputs() == 0) {
      entry.usage.first_token_ms = 1e3 * seconds_since(entry.submitted);
    }
    if (entry.request.sampling.uses_history()) entry.history.add_output(id);
    entry.tokens.push_back(id);
    row.outputs.push_back(id);
  }
  entry.usage.output_tokens = entry.outputs();
  entry.drafts.clear();
  const int64_t known = static_cast<int64_t>(entry.tokens.size()) - 1;
  if (entry.sequence.length() > known && row.finish == BatchFinish::kNone) {
    CHECK_OK(engine_.pool().truncate(entry.sequence, known));
  }
  return {};
}

// Makes reusable what is decided: an end inside accepted drafts leaves state of later tokens.
void BatchEngine::settle(Entry& entry) {
  if (!options_.prefix_cache) return;
  const int64_t length = entry.sequence.length();
  const int64_t committed = std::min(length, static_cast<int64_t>(entry.tokens.size()));
  prefixes_.publish(entry.sequence, committed, entry.chain);
  const int64_t boundary = committed / kBlockTokens * kBlockTokens;
  if (boundary <= entry.windows_at) return;
  entry.windows_at = boundary;
  if (length - boundary > engine_.pool().layout().rollback) return;  // overwritten already
  // A snapshot that finds no room only costs a later hit.
  (void)prefixes_.save_windows(entry.sequence, boundary, entry.chain);
}

// Drafts for every request that decodes next, in groups that fit a step.
Status BatchEngine::draft() {
  std::vector<Entry*> wanting;
  for (auto& [id, entry] : entries_) {
    const bool decodes = entry->on_device() && entry->outputs() > 0 &&
                         entry->sequence.length() + 1 == static_cast<int64_t>(entry->tokens.size());
    if (decodes && entry->drafts.empty() &&
        std::min(entry->request.drafts, entry->outputs_left() - 1) > 0) {
      wanting.push_back(entry.get());
    }
  }
  std::sort(wanting.begin(), wanting.end(), [](auto* a, auto* b) { return a->id < b->id; });
  const int64_t block = engine_.model().config().dspark_block_size;
  const auto group =
      static_cast<size_t>(engine_.forward().max_tokens() / std::max<int64_t>(block, 1));
  for (size_t begin = 0; begin < wanting.size(); begin += group) {
    const std::span<Entry*> part =
        std::span(wanting).subspan(begin, std::min(group, wanting.size() - begin));
    std::vector<Forward::DraftItem> items;
    std::vector<int32_t> previous;
    int64_t longest = 0;
    for (Entry* entry : part) {
      items.push_back({.sequence = &entry->sequence, .anchor = entry->tokens.back()});
      previous.push_back(entry->tokens.back());
      longest = std::max(longest, std::min(entry->request.drafts, entry->outputs_left() - 1));
    }
    CHECK_OK(engine_.forward().draft(items));
    for (int64_t k = 0; k < longest; ++k) {
      TRY(const Forward::DraftRow row, engine_.forward().draft_logits(k, previous));
      for (size_t i = 0; i < part.size(); ++i) {
        Entry& entry = *part[i];
        if (k >= std::min(entry.request.drafts, entry.outputs_left() - 1)) continue;
        const std::span<const float> logits(row.logits.f32(static_cast<int64_t>(i)),
                                            static_cast<size_t>(row.logits.width));
        const NoiseKey key{.seed = entry.request.sampling.seed,
                           .position = static_cast<int64_t>(entry.tokens.size()) + k};
        TRY(previous[i], sampler_.draft(logits, entry.request.sampling.temperature, key));
        entry.drafts.push_back(previous[i]);
      }
    }
  }
  return {};
}

}  // namespace tidemill
