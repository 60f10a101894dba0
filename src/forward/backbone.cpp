// The layers of the backbone, in order, and the cut of bounded replay.
#include <algorithm>

#include "forward/forward.h"

namespace tidemill {

void Forward::run_backbone() {
  const Config& config = model_->config();
  rows_ = &input_.all;
  const int64_t tokens = rows_->count;
  h_ = work_.h.first(tokens);
  h_spare_ = work_.h_spare;
  pre_ = work_.pre.first(tokens);
  pre_spare_ = work_.pre_spare;
  x_ = work_.x.first(tokens);
  taps_ = work_.taps.first(tokens);

  const auto rotations = [&](const StepArray<int64_t>& positions, bool compressed,
                             const Rows& table) {
    backend_->rope_table(
        {.position = positions.device(),
         .frequencies = compressed ? work_.frequencies_compressed : work_.frequencies_plain,
         .table = table.first(positions.count())});
  };
  rotations(input_.all.position, false, work_.rope_plain);
  rotations(input_.all.position, true, work_.rope_compressed);
  if (input_.cut) {
    rotations(input_.tail.position, false, work_.rope_plain_tail);
    rotations(input_.tail.position, true, work_.rope_compressed_tail);
  }
  for (const EntrySet& set : input_.entries) {
    rotations(set.position, true, work_.rope_entries[set.ratio]);
  }

  backend_->gather({.table = &weights().embed,
                    .rows = input_.ids.device(),
                    .copies = config.hc_mult,
                    .out = h_});
  // The first attention half is handed the one-hot `pre`: its input is the embedding itself.
  backend_->repeat_row({.row = work_.first_pre, .out = pre_});
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    run_layer(layer);
    if (rows_->count == 0) break;  // a prompt chunk before the tail: its global KV is complete
  }
  if (rows_->count > 0 && !weights().draft.stages.empty()) fill_draft_rings();
}

Forward::Scope Forward::scope_of(int64_t layer) const {
  const LayerRole& role = model_->topology().layers[static_cast<size_t>(layer)];
  const bool tail = rows_ == &input_.tail;
  const Rows& plain = tail ? work_.rope_plain_tail : work_.rope_plain;
  const Rows& compressed = tail ? work_.rope_compressed_tail : work_.rope_compressed;
  return {.rows = rows_,
          .rope = (role.ratio > 0 ? compressed : plain).first(rows_->count),
          .ring_add = pool_->layout().ring_offset[static_cast<size_t>(layer)],
          .role = &role,
          .layer = layer};
}

void Forward::run_layer(int64_t layer) {
  const Config& config = model_->config();
  const LayerWeights& w = weights().layers[static_cast<size_t>(layer)];
  const LayerRole& role = model_->topology().layers[static_cast<size_t>(layer)];

  if (role.engram >= 0) apply_engram(layer);
  if (role.tap >= 0) {
    backend_->stream_mean({.h = h_,
                           .streams = config.hc_mult,
                           .out = taps_.slice(role.tap * config.hidden_size, config.hidden_size)});
  }
  collapse(pre_, w.attn_norm, x_);
  if (role.owns_kv) backend_->beside(kSelection, x_.count, [&] { compress(layer); });
  if (input_.cut && layer == model_->topology().decoder_begin) {
    backend_->join(kSelection);  // it reads the rows that are cut
    cut_to_tail();
    if (rows_->count == 0) return;
  }
  const Scope scope = scope_of(layer);
  attention_half(scope, w);
  ffn_half(scope, w, config.num_experts_per_tok);
  see("hidden", scope, h_);
  see("pre", scope, pre_);
}

// From here on only the tail runs. The last cache has just been written for every token; nothing
// that an earlier row still has to say goes anywhere else.
void Forward::cut_to_tail() {
  rows_ = &input_.tail;
  narrow_streams(input_.tail_row);
  const auto narrow = [&](Rows& current, const Rows& spare) {
    const Rows out = spare.first(rows_->count);
    backend_->select_rows({.in = current, .row = input_.tail_row.device(), .out = out});
    current = out;
  };
  narrow(x_, work_.x_spare);
  if (taps_.width > 0) narrow(taps_, work_.taps_spare);
}

void Forward::apply_engram(int64_t layer) {
  const Config& config = model_->config();
  const LayerRole& role = model_->topology().layers[static_cast<size_t>(layer)];
  const EngramWeights& w = weights().layers[static_cast<size_t>(layer)].engram;
  const int64_t tokens = rows_->count;
  const Rows values = work_.engram_values.first(tokens);
  const Rows kvv = work_.engram_kvv.first(tokens);
  const Rows gate = work_.engram_gate.first(tokens);

  const auto& rows = rows_ == &input_.tail ? input_.engram_tail_rows : input_.engram_rows;
  backend_->gather({.table = &w.table,
                    .rows = rows[static_cast<size_t>(role.engram)].device(),
                    .per_row = config.engram_columns(),
                    .out = values});
  backend_->linear({.w = &w.wkv, .x = values, .y = kvv, .quantise_input = true});
  backend_->engram_gate({.h = h_,
                         .streams = config.hc_mult,
                         .kvv = kvv,
                         .q_weight = &w.q_weight,
                         .k_weight = &w.k_weight,
                         .eps = config.rms_norm_eps,
                         .image = rows_->image.empty() ? nullptr : rows_->image.device(),
                         .gate = gate});
  see("engram_gate", scope_of(layer), gate);
}

void Forward::head(const Rows& z, const Rows& logits) {
  backend_->linear({.w = &weights().head, .x = z, .y = logits, .f32_output = true});
}

// An observer may change what it sees.
void Forward::see(std::string_view name, const Scope& scope, const Rows& values) {
  if (!observer_) return;
  const auto copied = on_host(values);
  if (!copied) return;
  const Rows seen = *copied;
  observer_({.name = name,
             .layer = scope.layer,
             .rows = scope.rows,
             .values = seen,
             .ids = nullptr,
             .ids_width = 0});
  if (backend_->host_memory()) return;
  for (int64_t t = 0; t < values.count; ++t) {
    backend_->copy(values.f32(t), seen.f32(t), values.width * static_cast<int64_t>(sizeof(float)));
  }
}

void Forward::see(std::string_view name, const Scope& scope, int32_t* ids, int64_t width) {
  if (!observer_) return;
  // Four bytes each, as floats are.
  const auto copied = on_host(Rows{ids, h_.count, width, width});
  if (!copied) return;
  const Rows seen = *copied;
  observer_({.name = name,
             .layer = scope.layer,
             .rows = scope.rows,
             .values = {},
             .ids = static_cast<const int32_t*>(seen.data),
             .ids_width = width});
}

}  // namespace tidemill
