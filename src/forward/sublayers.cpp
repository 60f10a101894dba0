// The two halves of a layer: hyper-connection, norm, sublayer, hyper-connection.
#include <algorithm>
#include <cmath>

#include "forward/forward.h"

namespace tidemill {

void Forward::mix(const HcWeights& w, const Rows& pre_out) {
  const Config& config = model_->config();
  backend_->beside(kCoefficients, h_.count, [&] {
    backend_->hc_mix({.weights = &w,
                      .h = h_,
                      .streams = config.hc_mult,
                      .sinkhorn_iterations = config.hc_sinkhorn_iters,
                      .norm_eps = config.rms_norm_eps,
                      .hc_eps = config.hc_eps,
                      .pre = pre_out,
                      .post = work_.post.first(h_.count),
                      .comb = work_.comb.first(h_.count)});
  });
}

void Forward::collapse(const Rows& pre, const Bf16Vector& norm, const Rows& x) {
  backend_->collapse_norm({.h = h_,
                           .streams = model_->config().hc_mult,
                           .pre = pre,
                           .norm = norm,
                           .eps = model_->config().rms_norm_eps,
                           .collapsed = {},
                           .x = x});
}

void Forward::expand() {
  backend_->join(kCoefficients);
  backend_->expand({.h = h_,
                    .streams = model_->config().hc_mult,
                    .y = work_.y.first(h_.count),
                    .post = work_.post.first(h_.count),
                    .comb = work_.comb.first(h_.count)});
}

// The input x_ was collapsed by the caller with the `pre` handed in; all coefficients come from
// the streams before the sublayer. This half's own `pre` is used by the FFN half.
void Forward::attention_half(const Scope& scope, const LayerWeights& w) {
  mix(w.hc_attn, work_.pre_ffn.first(h_.count));
  attention(scope, w);
  see("attention", scope, work_.y.first(h_.count));
  expand();
}

void Forward::ffn_half(const Scope& scope, const LayerWeights& w, int64_t topk) {
  const Config& config = model_->config();
  mix(w.hc_ffn, pre_);  // handed to the next layer
  collapse(work_.pre_ffn.first(h_.count), w.ffn_norm, x_);
  backend_->route({.x = x_,
                   .gate = &w.moe.gate,
                   .bias = w.moe.bias,
                   .bias_vl = w.moe.bias_vl,
                   .image = scope.rows->image.empty() ? nullptr : scope.rows->image.device(),
                   .topk = topk,
                   .scale = config.routed_scaling_factor,
                   .ids = work_.expert_ids,
                   .weights = work_.expert_weights});
  see("expert_ids", scope, work_.expert_ids, topk);
  see("expert_weights", scope, Rows{work_.expert_weights, h_.count, topk, topk});
  std::span<const ExpertWeights> experts = w.moe.experts;
  if (options_.pager != nullptr && scope.role != nullptr) {
    const auto chosen = static_cast<size_t>(h_.count * topk);
    experts = options_.pager->acquire(scope.layer, {work_.expert_ids, chosen});
  }
  backend_->experts({.x = x_,
                     .experts = experts,
                     .table = w.moe.table,
                     .shared = &w.moe.shared,
                     .ids = work_.expert_ids,
                     .weights = work_.expert_weights,
                     .topk = topk,
                     .swiglu_limit = config.swiglu_limit,
                     .y = work_.y.first(h_.count)});
  see("ffn", scope, work_.y.first(h_.count));
  expand();
}

void Forward::attention(const Scope& scope, const LayerWeights& w) {
  const Config& config = model_->config();
  const AttentionWeights& a = w.attention;
  const int64_t tokens = scope.rows->count;
  const int64_t heads = config.num_attention_heads;
  const StateLayout& layout = pool_->layout();
  const Rows latent = work_.query_latent.first(tokens);
  const Rows q = work_.q.first(tokens);
  const Rows o = work_.o.first(tokens);
  const Rows grouped = work_.grouped.first(tokens);
  const bool reads_entries = scope.role != nullptr && scope.role->kv_source >= 0;
  const bool selects = reads_entries && scope.role->owns_index;

  backend_->beside(kWindow, tokens, [&] { window_rows(scope, a); });
  if (selects) backend_->beside(kSelection, tokens, [&] { weigh_heads(scope, w.indexer); });
  backend_->linear({.w = &a.wq_a, .x = x_, .y = latent, .quantise_input = true});
  backend_->rms_norm({.x = latent, .weight = a.q_norm, .eps = config.rms_norm_eps, .y = latent});
  if (selects) backend_->beside(kSelection, tokens, [&] { select_entries(scope, w.indexer); });
  backend_->linear({.w = &a.wq_b, .x = latent, .y = q, .quantise_input = true});
  backend_->rope({.x = q, .heads = heads, .table = scope.rope});
  backend_->join(kWindow);
  backend_->join(kSelection);
  if (selects) see("selected", scope, work_.selected, config.index_topk);
  if (selects && scope.role->builds_pool) {
    see("pool", scope, work_.pool, config.candidate_topk_blocks);
  }

  AttendArgs args{.q = q,
                  .out = o,
                  .heads = heads,
                  .sink = a.sink,
                  .sequence = scope.rows->sequence.device(),
                  .window_begin = scope.rows->window_begin.device(),
                  .window_end = scope.rows->window_end.device(),
                  .window_format = layout.window,
                  .fresh = work_.fresh,
                  .step_start = scope.rows->step_start.device(),
                  .step_row = scope.rows->step_row.device(),
                  .ring_base = pool_->slots(),
                  .ring_add = scope.ring_add,
                  .ring_offset = scope.role != nullptr ? input_.ring_offset.device()
                                                       : draft_ring_offset_.device(),
                  .ring_rows = layout.ring_rows,
                  .entries = {},
                  .selected = work_.selected,
                  .topk = config.index_topk};
  if (reads_entries) args.entries = paged(scope.role->kv_source, false);
  backend_->attend(args);
  if (scope.role != nullptr) store_window(scope);  // a draft block leaves no trace

  backend_->rope({.x = o, .heads = heads, .table = scope.rope, .inverse = true});
  backend_->linear({.w = &a.wo_a, .x = o, .y = grouped, .groups = config.o_groups});
  backend_->linear(
      {.w = &a.wo_b, .x = grouped, .y = work_.y.first(tokens), .quantise_input = true});
}

void Forward::window_rows(const Scope& scope, const AttentionWeights& w) {
  const Rows kv = work_.kv.first(scope.rows->count);
  backend_->linear({.w = &w.wkv, .x = x_, .y = kv, .quantise_input = true});
  backend_->rms_norm({.x = kv, .weight = w.kv_norm, .eps = model_->config().rms_norm_eps, .y = kv});
  backend_->rope({.x = kv, .table = scope.rope});
  backend_->store_rows({.x = kv,
                        .format = pool_->layout().window,
                        .base = work_.fresh,
                        .offset = work_.fresh_offset});
}

// How much each of the indexer's heads counts.
void Forward::weigh_heads(const Scope& scope, const IndexerWeights& w) {
  const Config& config = model_->config();
  const double factor = std::pow(static_cast<double>(config.index_head_dim), -0.5) *
                        std::pow(static_cast<double>(config.index_n_heads), -0.5);
  backend_->linear({.w = &w.weights_proj,
                    .x = x_,
                    .y = work_.index_weight.first(scope.rows->count),
                    .scale = static_cast<float>(factor)});
}

void Forward::select_entries(const Scope& scope, const IndexerWeights& w) {
  const Config& config = model_->config();
  const LayerRole& role = *scope.role;
  const int64_t tokens = scope.rows->count;
  const int64_t heads = config.index_n_heads;
  const Rows q = work_.index_q.first(tokens);

  backend_->linear(
      {.w = &w.wq_b, .x = work_.query_latent.first(tokens), .y = q, .quantise_input = true});
  backend_->rope({.x = q, .heads = heads, .table = scope.rope});
  backend_->round_rows({.x = q, .kind = pool_->layout().key.kind, .group = config.index_head_dim});
  backend_->index_select({.q = q,
                          .weight = work_.index_weight.first(tokens),
                          .heads = heads,
                          .keys = paged(role.kv_source, true),
                          .sequence = scope.rows->sequence.device(),
                          .visible = scope.rows->visible[role.ratio].device(),
                          .most_visible = scope.rows->most_visible[role.ratio],
                          .topk = config.index_topk,
                          .selected = work_.selected,
                          .pool_block = config.candidate_block_size,
                          .pool_topk = config.candidate_topk_blocks,
                          .pool_out = role.builds_pool ? work_.pool : nullptr,
                          .pool_in = role.reads_pool ? work_.pool : nullptr});
}

}  // namespace tidemill
