// One DSpark draft pass: a block of positions after the committed ones, all stages, then the
// sequential Markov part (spec: DSpark A.5).
#include <algorithm>

#include "forward/forward.h"

namespace tidemill {

Status Forward::draft(std::span<const DraftItem> items) {
  const Config& config = model_->config();
  const DraftWeights& draft = weights().draft;
  const StateLayout& layout = pool_->layout();
  const int64_t block = config.dspark_block_size;
  draft_next_ = block;  // none is due, should this fail
  draft_sequences_ = static_cast<int64_t>(items.size());
  // Further blocks are the last one once more: a block leaves no trace.
  const int64_t filled = repeated_rows(draft_sequences_, block);
  const int64_t sequences = std::max(filled, draft_sequences_);
  const int64_t tokens = sequences * block;
  if (draft.stages.empty()) {
    return fail(ErrorCode::kInvalidArgument, "this checkpoint has no drafter; use --draft 0");
  }
  if (tokens == 0 || tokens > options_.max_tokens) {
    return fail(ErrorCode::kInvalidArgument,
                "drafts for {} sequences need {} rows: this engine runs 1 to {}", sequences, tokens,
                options_.max_tokens);
  }
  const int64_t vocabulary = config.vocab_size;
  if (tokens > draft_logits_capacity_) {
    const int64_t rows = std::clamp(2 * draft_logits_capacity_, tokens, options_.max_tokens);
    draft_logits_ = {};  // no room is planned for both
    draft_logits_capacity_ = 0;
    TRY(draft_logits_, backend_->allocate(rows * vocabulary * static_cast<int64_t>(sizeof(float))));
    draft_logits_capacity_ = rows;
  }

  draft_rows_.clear();
  draft_ids_.clear();
  draft_ring_offset_.clear();
  draft_head_row_.clear();
  for (int64_t s = 0; s < sequences; ++s) {
    const DraftItem& item = items[static_cast<size_t>(std::min(s, draft_sequences_ - 1))];
    const Sequence& sequence = *item.sequence;
    const int32_t anchor = item.anchor;
    if (anchor < 0 || anchor >= vocabulary) {
      return fail(ErrorCode::kTokenOutOfRange, "token id {} is outside the vocabulary of {}",
                  anchor, vocabulary);
    }
    const int64_t start = sequence.length();
    draft_ring_offset_.push_back(sequence.slot * layout.slot_bytes);
    draft_rows_.step_start.push_back(start);
    draft_rows_.step_row.push_back(draft_rows_.count);
    for (int64_t k = 0; k < block; ++k) {
      draft_ids_.push_back(k == 0 ? anchor : config.dspark_noise_token_id);
      draft_rows_.position.push_back(start + k);
      draft_rows_.sequence.push_back(static_cast<int32_t>(s));
      // Every query sees the whole window before the block and the whole block: not causal.
      draft_rows_.window_begin.push_back(
          std::max(decoder_floor(sequence), start - layout.window_tokens));
      draft_rows_.window_end.push_back(start + block);
      ++draft_rows_.count;
    }
  }

  for (int64_t k = 0; k < block; ++k) {
    for (int64_t s = 0; s < sequences; ++s) draft_head_row_.push_back(s * block + k);
  }

  std::vector<StagedArray> arrays{draft_ids_.staged(), draft_ring_offset_.staged(),
                                  draft_head_row_.staged()};
  draft_rows_.list(arrays);
  CHECK_OK(backend_->stage(arrays));
  draft_next_ = 0;
  std::vector<int64_t> key;
  if (filled > 0) key = key_of(Ops::kDraft, {filled, address(draft_logits_.get())}, arrays);
  run_ops(key, [&] { run_draft(tokens); });
  return {};
}

void Forward::run_draft(int64_t tokens) {
  const Config& config = model_->config();
  const DraftWeights& draft = weights().draft;
  const StateLayout& layout = pool_->layout();
  h_ = work_.h.first(tokens);
  pre_ = work_.pre.first(tokens);
  x_ = work_.x.first(tokens);
  const Rows rotation = work_.rope_draft.first(tokens);
  backend_->rope_table({.position = draft_rows_.position.device(),
                        .frequencies = work_.frequencies_plain,
                        .table = rotation});
  backend_->gather({.table = &weights().embed,
                    .rows = draft_ids_.device(),
                    .copies = config.hc_mult,
                    .out = h_});
  backend_->repeat_row({.row = work_.first_pre, .out = pre_});
  for (size_t stage = 0; stage < draft.stages.size(); ++stage) {
    const LayerWeights& w = draft.stages[stage];
    const Scope scope{.rows = &draft_rows_,
                      .rope = rotation,
                      .ring_add = layout.draft_ring_offset[stage],
                      .role = nullptr,
                      .layer = config.num_hidden_layers + static_cast<int64_t>(stage)};
    collapse(pre_, w.attn_norm, x_);
    attention_half(scope, w);
    ffn_half(scope, w, config.dspark_num_experts_per_tok);
  }
  const Rows z = work_.z.first(tokens);
  backend_->collapse_norm(
      {.h = h_,
       .streams = config.hc_mult,
       .pre = pre_,
       .norm = draft.norm,
       .eps = config.rms_norm_eps,
       .collapsed = work_.draft_hidden.first(tokens).slice(0, config.hidden_size),
       .x = z});
  // Logits of a position lie together: they are copied to the host at once.
  const Rows by_position = work_.x_spare.first(tokens);
  backend_->select_rows({.in = z, .row = draft_head_row_.device(), .out = by_position});
  head(by_position, Rows{draft_logits_.get(), tokens, config.vocab_size, config.vocab_size});
}

Result<Forward::DraftRow> Forward::draft_logits(int64_t k, std::span<const int32_t> previous,
                                                std::span<const DrawRow> draws) {
  const Config& config = model_->config();
  const DraftWeights& draft = weights().draft;
  const int64_t block = config.dspark_block_size;
  const int64_t sequences = draft_sequences_;
  const bool sizes_agree =
      std::ssize(previous) == sequences && (draws.empty() || std::ssize(draws) == sequences);
  if (k != draft_next_ || k >= block || !sizes_agree) {
    return fail(ErrorCode::kInternal, "draft position {} of {} asked for {} sequences, {} is due",
                k, block, previous.size(), draft_next_);
  }
  ++draft_next_;
  draft_previous_.clear();
  draft_previous_.append(previous.begin(), previous.end());
  draws_.assign(draws);
  const StagedArray arrays[] = {draft_previous_.staged(), draws_.staged()};
  CHECK_OK(backend_->stage(arrays));

  // Row k of every block: start at row k, one block further for each sequence.
  const auto every_block = [&](const Rows& rows) {
    return Rows{rows.f32(k), sequences, rows.width, rows.stride * block};
  };
  const Rows hidden = every_block(work_.draft_hidden);
  const Rows markov = hidden.slice(config.hidden_size, config.dspark_markov_rank);
  backend_->gather({.table = &draft.markov_embed, .rows = draft_previous_.device(), .out = markov});
  const Rows confidence = work_.draft_confidence.first(sequences);
  backend_->linear({.w = &draft.confidence, .x = hidden, .y = confidence, .f32_output = true});
  const int64_t rows = draft_head_row_.count();
  const Rows all{draft_logits_.get(), rows, config.vocab_size, config.vocab_size};
  const Rows logits{all.f32(rows / block * k), sequences, all.width, all.stride};
  backend_->linear(
      {.w = &draft.markov_head, .x = markov, .y = logits, .f32_output = true, .accumulate = true});
  TRY(const StepOutput output, fetch(logits));
  draft_confidence_.resize(static_cast<size_t>(sequences));
  backend_->copy(draft_confidence_.data(), confidence.data,
                 sequences * static_cast<int64_t>(sizeof(float)));
  CHECK_OK(backend_->finish());
  return DraftRow{output.logits, output.drawn, draft_confidence_};
}

}  // namespace tidemill
