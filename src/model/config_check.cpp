// Which sizes of a configuration fit each other.
#include <array>
#include <utility>

#include "model/config.h"

namespace tidemill {

namespace {

using Named = std::pair<std::string_view, int64_t>;

// Activations, window rows, index keys and Engram rows are quantised in blocks of 32 columns.
Status check_multiples_of_32(const Config& c) {
  const std::array<Named, 7> sizes = {{
      {"hidden_size", c.hidden_size},
      {"head_dim", c.head_dim},
      {"q_lora_rank", c.q_lora_rank},
      {"o_groups * o_lora_rank", c.o_groups * c.o_lora_rank},
      {"moe_intermediate_size", c.moe_intermediate_size},
      {"index_head_dim", c.index_head_dim},
      {"engram_head_dim", c.engram_head_dim},
  }};
  for (const auto& [key, size] : sizes) {
    if (size % 32 != 0) {
      return fail(ErrorCode::kConfig,
                  "config.json: {} is {}, not a multiple of 32 (the quantisation block)", key,
                  size);
    }
  }
  return {};
}

Status check_widths(const Config& c) {
  const std::array<Named, 8> widths = {{
      {"num_attention_heads * head_dim", c.num_attention_heads * c.head_dim},
      {"o_groups * o_lora_rank", c.o_groups * c.o_lora_rank},
      {"index_n_heads * index_head_dim", c.index_n_heads * c.index_head_dim},
      {"(hc_mult + 1) * hidden_size", (c.hc_mult + 1) * c.hidden_size},
      {"dspark_target_layer_ids x hidden_size",
       static_cast<int64_t>(c.dspark_target_layer_ids.size()) * c.hidden_size},
      {"Engram columns * engram_head_dim", c.engram_columns() * c.engram_head_dim},
      {"n_routed_experts * num_hidden_layers", c.n_routed_experts * c.num_hidden_layers},
      {"candidate_topk_blocks", c.candidate_topk_blocks},
  }};
  for (const auto& [key, width] : widths) {
    if (width > kMaxWidth) {
      return fail(ErrorCode::kConfig, "config.json: {} is {}; at most {} is supported", key, width,
                  kMaxWidth);
    }
  }
  return {};
}

// Each token id that the configuration names has a row of the embedding.
Status check_token_ids(const Config& c) {
  const std::array<Named, 6> ids = {{
      {"bos_token_id", c.bos_token_id},
      {"eos_token_id", c.eos_token_id},
      {"pad_token_id", c.pad_token_id},
      {"image_token_id", c.image_token_id},
      {"engram_pad_token_id", c.engram_pad_token_id},
      {"dspark_noise_token_id", c.dspark_noise_token_id},
  }};
  for (const auto& [key, id] : ids) {
    if (id >= c.vocab_size) {
      return fail(ErrorCode::kConfig, "config.json: {} is {}, but vocab_size is {}", key, id,
                  c.vocab_size);
    }
  }
  return {};
}

Status check_not_above(Named small, Named large) {
  if (small.second <= large.second) return {};
  return fail(ErrorCode::kConfig, "config.json: {} is {}, more than {} = {}", small.first,
              small.second, large.first, large.second);
}

Status check_attention(const Config& c) {
  if (c.num_attention_heads % c.o_groups != 0) {
    return fail(ErrorCode::kConfig,
                "config.json: num_attention_heads is {}, not a multiple of o_groups = {}",
                c.num_attention_heads, c.o_groups);
  }
  if (c.qk_rope_head_dim % 2 != 0) {
    return fail(ErrorCode::kConfig,
                "config.json: qk_rope_head_dim is {}; dimensions rotate in pairs, it must be even",
                c.qk_rope_head_dim);
  }
  const Named rope = {"qk_rope_head_dim", c.qk_rope_head_dim};
  CHECK_OK(check_not_above(rope, {"head_dim", c.head_dim}));
  if (!c.index_source_layer_ids.empty()) {
    CHECK_OK(check_not_above(rope, {"index_head_dim", c.index_head_dim}));
  }
  if (c.rope_scaling.beta_slow >= c.rope_scaling.beta_fast) {
    return fail(ErrorCode::kConfig,
                "config.json: rope_scaling.beta_slow is {}, not below beta_fast = {}",
                c.rope_scaling.beta_slow, c.rope_scaling.beta_fast);
  }
  return {};
}

Status check_compress_ratios(const Config& c) {
  const auto size = static_cast<int64_t>(c.compress_ratios.size());
  if (size != c.num_hidden_layers + c.num_nextn_predict_layers) {
    return fail(ErrorCode::kConfig,
                "config.json: compress_ratios has {} entries, but num_hidden_layers + "
                "num_nextn_predict_layers = {} + {}",
                size, c.num_hidden_layers, c.num_nextn_predict_layers);
  }
  for (int64_t i = c.num_hidden_layers; i < size; ++i) {
    if (c.compress_ratios[i] != 0) {
      return fail(ErrorCode::kConfig,
                  "config.json: compress_ratios[{}] is {}; a drafter stage reads no cache, it must "
                  "be 0",
                  i, c.compress_ratios[i]);
    }
  }
  return {};
}

Status check_engram(const Config& c) {
  if (c.engram_num_embeddings.size() != c.engram_layer_ids.size()) {
    return fail(ErrorCode::kConfig,
                "config.json: engram_num_embeddings has {} entries, but engram_layer_ids has {}",
                c.engram_num_embeddings.size(), c.engram_layer_ids.size());
  }
  return check_not_above({"engram_compressed_vocab_size", c.engram_compressed_vocab_size},
                         {"vocab_size", c.vocab_size});
}

}  // namespace

Status Config::check() const {
  CHECK_OK(check_multiples_of_32(*this));
  CHECK_OK(check_widths(*this));
  CHECK_OK(check_token_ids(*this));
  CHECK_OK(check_attention(*this));
  CHECK_OK(check_not_above({"num_experts_per_tok", num_experts_per_tok},
                           {"n_routed_experts", n_routed_experts}));
  CHECK_OK(check_compress_ratios(*this));
  CHECK_OK(check_engram(*this));
  if (num_nextn_predict_layers > 0) {
    CHECK_OK(check_not_above({"dspark_num_experts_per_tok", dspark_num_experts_per_tok},
                             {"dspark_n_routed_experts", dspark_n_routed_experts}));
    if (dspark_target_layer_ids.empty()) {
      return fail(ErrorCode::kConfig,
                  "config.json: dspark_target_layer_ids is empty, but num_nextn_predict_layers is "
                  "{}: the drafter needs a tap",
                  num_nextn_predict_layers);
    }
  }
  return {};
}

}  // namespace tidemill
