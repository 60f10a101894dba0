// What a step leaves in the state: window rows, compressed entries, index keys, drafter rows.
#include "forward/forward.h"

namespace tidemill {

PagedRows Forward::paged(int64_t source, bool keys) const {
  const StateLayout& layout = pool_->layout();
  const StateLayout::Source& s = layout.sources[static_cast<size_t>(source)];
  return {.base = pool_->blocks(),
          .block_bytes = layout.block_bytes,
          .offset = keys ? s.key_offset : s.entry_offset,
          .rows_per_block = s.rows_per_block,
          .format = keys ? layout.key : layout.entry,
          .table = input_.block_table.device(),
          .table_begin = input_.block_begin.device()};
}

// Entries and index keys of the tokens that complete a group in this step (spec 7.1); a group's
// first token may be one that is replayed, so pending rows are kept for all. The key is made from
// the latent before it is rotated and quantised.
void Forward::compress(int64_t layer) {
  const Config& config = model_->config();
  const LayerRole& role = model_->topology().layers[static_cast<size_t>(layer)];
  const CompressorWeights& w = weights().layers[static_cast<size_t>(layer)].compressor;
  const StateLayout& layout = pool_->layout();
  const StateLayout::Source& source = layout.sources[static_cast<size_t>(role.kv_source)];
  const EntrySet& set = input_.entries_of(role.ratio);
  const Rows latent = work_.latent.first(set.count());
  const Rows key = work_.index_key.first(set.count());

  if (role.ratio == 1) {
    Rows x = x_;
    if (set.count() < x_.count) {  // replayed tokens have no entries
      x = work_.x_spare.first(set.count());
      backend_->select_rows({.in = x_, .row = set.last_row.device(), .out = x});
    }
    if (x.count > 0) backend_->linear({.w = &w.wkv, .x = x, .y = latent});
  } else {
    const Rows pair = work_.pair_kv.first(x_.count);
    const Rows k = pair.slice(0, config.head_dim);
    const Rows g = pair.slice(config.head_dim, config.head_dim);
    backend_->linear({.w = &w.wkv, .x = x_, .y = k, .f32_output = true});
    backend_->linear({.w = &w.wgate, .x = x_, .y = g, .f32_output = true});
    backend_->compress_pairs({.k = k,
                              .g = g,
                              .odd_row = set.last_row.device(),
                              .even_row = set.first_row.device(),
                              .pending_base = pool_->slots(),
                              .pending_add = source.pending_offset,
                              .pending_offset = set.pending_offset.device(),
                              .latent = latent});
    backend_->scatter_rows({.rows = static_cast<const std::byte*>(pair.data),
                            .count = pair.count,
                            .row_bytes = layout.pending_row_bytes,
                            .base = pool_->slots(),
                            .add = source.pending_offset,
                            .offset = set.pending_store.device()});
  }
  if (set.count() == 0) return;
  const Rows rotation = work_.rope_entries[role.ratio].first(set.count());
  backend_->rms_norm({.x = latent, .weight = w.norm, .eps = config.rms_norm_eps, .y = latent});

  backend_->linear({.w = &w.index_wk, .x = latent, .y = key});
  backend_->rms_norm({.x = key, .weight = w.index_k_norm, .eps = config.rms_norm_eps, .y = key});
  backend_->rope({.x = key, .table = rotation});
  backend_->store_rows({.x = key,
                        .format = layout.key,
                        .base = pool_->blocks(),
                        .add = source.key_offset,
                        .offset = set.key_store.device()});

  backend_->rope({.x = latent, .table = rotation});
  backend_->store_rows({.x = latent,
                        .format = layout.entry,
                        .base = pool_->blocks(),
                        .add = source.entry_offset,
                        .offset = set.entry_store.device()});
}

void Forward::store_window(const Scope& scope) {
  backend_->scatter_rows({.rows = work_.fresh,
                          .count = scope.rows->count,
                          .row_bytes = pool_->layout().window.bytes(),
                          .base = pool_->slots(),
                          .add = scope.ring_add,
                          .offset = scope.rows->ring_store.device()});
}

// The drafter's context rows of the committed tokens come from the backbone's taps, never from the
// drafter itself, so there is nothing of it to roll back.
void Forward::fill_draft_rings() {
  const Config& config = model_->config();
  const StateLayout& layout = pool_->layout();
  const DraftWeights& draft = weights().draft;
  const int64_t count = input_.draft_row.count();
  if (count == 0) return;
  const Rows& spare = taps_.data == work_.taps.data ? work_.taps_spare : work_.taps;
  const Rows taps = spare.first(count);
  backend_->select_rows({.in = taps_, .row = input_.draft_row.device(), .out = taps});

  const Rows main_x = work_.main_x.first(count);
  const Rows kv = work_.kv.first(count);
  const Rows rotation = work_.rope_draft.first(count);
  backend_->rope_table({.position = input_.draft_position.device(),
                        .frequencies = work_.frequencies_plain,
                        .table = rotation});
  backend_->linear({.w = &draft.main_proj, .x = taps, .y = main_x, .quantise_input = true});
  backend_->rms_norm(
      {.x = main_x, .weight = draft.main_norm, .eps = config.rms_norm_eps, .y = main_x});
  for (size_t stage = 0; stage < draft.stages.size(); ++stage) {
    const AttentionWeights& w = draft.stages[stage].attention;
    backend_->linear({.w = &w.wkv, .x = main_x, .y = kv, .quantise_input = true});
    backend_->rms_norm({.x = kv, .weight = w.kv_norm, .eps = config.rms_norm_eps, .y = kv});
    backend_->rope({.x = kv, .table = rotation});
    backend_->store_rows({.x = kv,
                          .format = layout.window,
                          .base = pool_->slots(),
                          .add = layout.draft_ring_offset[stage],
                          .offset = input_.draft_store.device()});
  }
}

}  // namespace tidemill
