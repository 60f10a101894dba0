// The released config.json of a deepseek_v41 checkpoint, read and checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tidemill {

// YaRN; applied to the compressed-rope table at every length.
struct RopeScaling {
  double factor = 16;
  double beta_fast = 32;
  double beta_slow = 1;
  int64_t original_max_position_embeddings = 65536;
};

// Names follow config.json so that an error, the file and the code use one word.
struct Config {
  // top level
  int32_t bos_token_id = 0;
  int32_t eos_token_id = 1;
  int32_t pad_token_id = 2;
  int32_t image_token_id = -1;
  bool has_vision = false;  // vision_config is an object: its tensors are present and skipped
  // quantization_config.expert_dtype: routed experts are fp8 with 32 x 32 blocks, not fp4.
  bool fp8_experts = false;

  // text_config
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t q_lora_rank = 0;
  int64_t o_lora_rank = 0;
  int64_t o_groups = 0;
  float rms_norm_eps = 1e-20f;
  float swiglu_limit = 10;
  int64_t max_position_embeddings = 0;
  double rope_theta = 10000;
  double compress_rope_theta = 160000;
  RopeScaling rope_scaling;

  int64_t moe_intermediate_size = 0;
  int64_t n_routed_experts = 0;
  int64_t num_experts_per_tok = 0;
  float routed_scaling_factor = 1;

  int64_t sliding_window = 0;
  std::vector<int64_t> compress_ratios;  // num_hidden_layers + num_nextn_predict_layers
  std::vector<int64_t> kv_source_layer_ids;
  std::vector<int64_t> index_source_layer_ids;
  int64_t index_n_heads = 0;
  int64_t index_head_dim = 0;
  int64_t index_topk = 0;
  int64_t candidate_source_layer_id = -1;  // -1: no pool
  int64_t candidate_topk_blocks = 0;
  int64_t candidate_block_size = 0;

  int64_t hc_mult = 0;
  int64_t hc_sinkhorn_iters = 0;
  float hc_eps = 1e-6f;

  std::vector<int64_t> engram_layer_ids;
  std::vector<int64_t> engram_num_embeddings;  // rows of each table
  int64_t engram_max_ngram_size = 0;
  int64_t engram_vocab_size = 0;
  int64_t engram_n_heads = 0;
  int64_t engram_head_dim = 0;
  int64_t engram_pad_token_id = 0;
  int64_t engram_compressed_vocab_size = 0;

  int64_t num_nextn_predict_layers = 0;  // DSpark stages; 0: no drafter
  int64_t dspark_block_size = 0;
  int64_t dspark_noise_token_id = 0;
  std::vector<int64_t> dspark_target_layer_ids;
  int64_t dspark_markov_rank = 0;
  int64_t dspark_n_routed_experts = 0;
  int64_t dspark_num_experts_per_tok = 0;

  // Columns of an Engram lookup: one row per n-gram size (2..max) and head.
  int64_t engram_columns() const { return (engram_max_ngram_size - 1) * engram_n_heads; }

  // Errors: kConfig names the key, what it says and what was expected. Keys that only matter for an
  // absent part (Engram, drafter, candidate pool, compressed caches) are read only when it is
  // there.
  static Result<Config> parse(std::string_view json);
  static Result<Config> load(const std::filesystem::path& directory);

  // Do the sizes fit each other? parse() has asked. Layer ids are Topology's part.
  Status check() const;
};

// Limits of parse(), so that no product of sizes overflows 64 bits and no file asks for absurd
// memory: each is 15 times the released value or more.
inline constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
inline constexpr int64_t kMaxContext = int64_t{1} << 24;
inline constexpr int64_t kMaxDimension = int64_t{1} << 17;  // of one dimension
inline constexpr int64_t kMaxWidth = int64_t{1} << 22;      // of a product such as heads x head_dim
inline constexpr int64_t kMaxLayers = 1024;
inline constexpr int64_t kMaxExperts = 8192;
inline constexpr int64_t kMaxEngramRows = int64_t{1} << 40;
inline constexpr int64_t kMaxEngramNgram = 8;
inline constexpr int64_t kMaxDraftBlock = 64;

// Defaults of generation_config.json; a missing file gives greedy decoding.
struct GenerationConfig {
  bool do_sample = false;
  float temperature = 1;
  float top_p = 1;
  int64_t top_k = 0;
  std::vector<int32_t> eos_token_ids;  // empty: the file names none
  // Fitted when the drafter was trained: confidence = sigmoid(z / T), one T or one for each draft
  // position; empty: the file names none (1). Our own key, the release has no place for it.
  std::vector<float> dspark_confidence_temperatures;
  static Result<GenerationConfig> parse(std::string_view json);
  static Result<GenerationConfig> load(const std::filesystem::path& directory);
};

}  // namespace tidemill
