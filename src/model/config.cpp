#include "model/config.h"

#include <limits>

#include "base/mapped_file.h"
#include "model/json_reader.h"

namespace tidemill {

namespace {

using nlohmann::json;

constexpr double kMaxNumber = 1e30;  // leaves room to multiply in float32

void read_model_type(JsonReader& in) {
  std::string model_type;
  in.string("model_type", model_type);
  // The whole name: deepseek_v4 and deepseek_v42 share a prefix with it and are other models.
  if (in.ok() && model_type != "deepseek_v41") {
    in.fail_at("model_type", fmt::format("{} is not supported; this program runs deepseek_v41",
                                         excerpt(model_type)));
  }
}

void read_quantization(JsonReader in, Config& out) {
  in.require("quant_method", "fp8");
  in.require_if_present("activation_scheme", "dynamic");
  in.require("weight_block_size", json::array({32, 32}));
  in.require("scale_fmt", "ue8m0");
  std::string expert_dtype = "fp4";
  if (in.has("expert_dtype")) in.string("expert_dtype", expert_dtype);
  out.fp8_experts = expert_dtype == "fp8";
  if (expert_dtype != "fp4" && expert_dtype != "fp8") {
    in.fail_at("expert_dtype",
               fmt::format("expected \"fp4\" or \"fp8\", found {}", excerpt(expert_dtype)));
  }
}

void read_fixed_values(JsonReader& in) {
  in.require_if_present("model_type", "deepseek_v41_text");
  in.require_if_present("dtype", "bfloat16");
  in.require_if_present("hidden_act", "silu");
  in.require_if_present("attention_bias", false);
  in.require_if_present("tie_word_embeddings", false);
  in.require_if_present("num_key_value_heads", 1);
  in.require_if_present("n_shared_experts", 1);
  in.require("scoring_func", "sqrtsoftplus");
  in.require("topk_method", "noaux_tc");
  in.require_if_present("norm_topk_prob", true);
  in.require_if_present("gate_temp", 1.0);
}

void read_attention(JsonReader& in, Config& out) {
  in.integer("num_attention_heads", out.num_attention_heads, 1, kMaxDimension);
  in.integer("head_dim", out.head_dim, 1, kMaxDimension);
  in.integer("qk_rope_head_dim", out.qk_rope_head_dim, 2, kMaxDimension);
  in.integer("q_lora_rank", out.q_lora_rank, 1, kMaxDimension);
  in.integer("o_lora_rank", out.o_lora_rank, 1, kMaxDimension);
  in.integer("o_groups", out.o_groups, 1, kMaxDimension);
  in.integer("max_position_embeddings", out.max_position_embeddings, 1, kMaxContext);
  in.integer("sliding_window", out.sliding_window, 1, kMaxContext);
  in.number("rope_theta", out.rope_theta, 1.001, kMaxNumber);
  in.number("compress_rope_theta", out.compress_rope_theta, 1.001, kMaxNumber);

  JsonReader scaling = in.object("rope_scaling");
  scaling.require("rope_type", "yarn");
  scaling.number("factor", out.rope_scaling.factor, 1, 1e6);
  scaling.number("beta_fast", out.rope_scaling.beta_fast, 1e-3, 1e6);
  scaling.number("beta_slow", out.rope_scaling.beta_slow, 1e-3, 1e6);
  scaling.integer("original_max_position_embeddings",
                  out.rope_scaling.original_max_position_embeddings, 1, kMaxContext);
}

void read_compressed_caches(JsonReader& in, Config& out) {
  constexpr size_t kMaxIds = kMaxLayers;
  in.integers("compress_ratios", out.compress_ratios, 0, 2, 2 * kMaxLayers);
  in.integers("kv_source_layer_ids", out.kv_source_layer_ids, 0, kMaxLayers, kMaxIds);
  in.integers("index_source_layer_ids", out.index_source_layer_ids, 0, kMaxLayers, kMaxIds);
  if (!out.index_source_layer_ids.empty()) {
    in.integer("index_n_heads", out.index_n_heads, 1, kMaxDimension);
    in.integer("index_head_dim", out.index_head_dim, 1, kMaxDimension);
    in.integer("index_topk", out.index_topk, 1, kMaxContext);
  }
  if (in.has("candidate_source_layer_id")) {
    in.integer("candidate_source_layer_id", out.candidate_source_layer_id, -1, kMaxLayers);
  }
  if (out.candidate_source_layer_id >= 0) {
    in.integer("candidate_topk_blocks", out.candidate_topk_blocks, 1, kMaxContext);
    in.integer("candidate_block_size", out.candidate_block_size, 1, kMaxContext);
  }
}

void read_experts(JsonReader& in, Config& out) {
  in.integer("moe_intermediate_size", out.moe_intermediate_size, 1, kMaxDimension);
  in.integer("n_routed_experts", out.n_routed_experts, 1, kMaxExperts);
  in.integer("num_experts_per_tok", out.num_experts_per_tok, 1, kMaxExperts);
  in.number("routed_scaling_factor", out.routed_scaling_factor, 1e-6, 1e6);
  in.number("swiglu_limit", out.swiglu_limit, 1e-6, kMaxNumber);
}

void read_engram(JsonReader& in, Config& out) {
  if (!in.has("engram_layer_ids")) return;
  in.integers("engram_layer_ids", out.engram_layer_ids, 0, kMaxLayers, 64);
  if (out.engram_layer_ids.empty()) return;
  in.integers("engram_num_embeddings", out.engram_num_embeddings, 1, kMaxEngramRows, 64);
  in.integer("engram_max_ngram_size", out.engram_max_ngram_size, 2, kMaxEngramNgram);
  in.integer("engram_vocab_size", out.engram_vocab_size, 2, int64_t{1} << 31);
  in.integer("engram_n_heads", out.engram_n_heads, 1, 64);
  in.integer("engram_head_dim", out.engram_head_dim, 1, kMaxDimension);
  in.integer("engram_pad_token_id", out.engram_pad_token_id, 0, kMaxVocabulary);
  in.integer("engram_compressed_vocab_size", out.engram_compressed_vocab_size, 1, kMaxVocabulary);
}

void read_drafter(JsonReader& in, Config& out) {
  if (!in.has("num_nextn_predict_layers")) return;
  in.integer("num_nextn_predict_layers", out.num_nextn_predict_layers, 0, 16);
  if (out.num_nextn_predict_layers == 0) return;
  in.integer("dspark_block_size", out.dspark_block_size, 1, kMaxDraftBlock);
  in.integer("dspark_noise_token_id", out.dspark_noise_token_id, 0, kMaxVocabulary);
  in.integers("dspark_target_layer_ids", out.dspark_target_layer_ids, 0, kMaxLayers, 64);
  in.integer("dspark_markov_rank", out.dspark_markov_rank, 1, kMaxDimension);
  in.integer("dspark_n_routed_experts", out.dspark_n_routed_experts, 1, kMaxExperts);
  in.integer("dspark_num_experts_per_tok", out.dspark_num_experts_per_tok, 1, kMaxExperts);
}

void read_text_config(JsonReader in, Config& out) {
  read_fixed_values(in);
  in.integer("vocab_size", out.vocab_size, 1, kMaxVocabulary);
  in.integer("hidden_size", out.hidden_size, 1, kMaxDimension);
  in.integer("num_hidden_layers", out.num_hidden_layers, 1, kMaxLayers);
  in.number("rms_norm_eps", out.rms_norm_eps, std::numeric_limits<float>::min(), 1);
  in.integer("hc_mult", out.hc_mult, 1, 64);
  in.integer("hc_sinkhorn_iters", out.hc_sinkhorn_iters, 1, 1000);
  in.number("hc_eps", out.hc_eps, 0, 1);
  read_attention(in, out);
  read_compressed_caches(in, out);
  read_experts(in, out);
  read_engram(in, out);
  read_drafter(in, out);
}

Result<std::string_view> text_of(const MappedFile& file) {
  constexpr size_t kMaxBytes = size_t{16} << 20;
  const auto bytes = file.bytes();
  if (bytes.size() > kMaxBytes) {
    return fail(ErrorCode::kConfig, "{} has {} bytes; at most {} are read", file.path().string(),
                bytes.size(), kMaxBytes);
  }
  return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace

Result<Config> Config::parse(std::string_view text) {
  TRY(const json root, parse_document(text, "config.json", ErrorCode::kConfig));
  JsonReader in(root, "config.json", ErrorCode::kConfig);
  Config config;
  read_model_type(in);
  in.require_if_present("dtype", "bfloat16");
  in.integer("bos_token_id", config.bos_token_id, 0, kMaxVocabulary);
  in.integer("eos_token_id", config.eos_token_id, 0, kMaxVocabulary);
  in.integer("pad_token_id", config.pad_token_id, 0, kMaxVocabulary);
  if (in.has("image_token_id")) {
    in.integer("image_token_id", config.image_token_id, 0, kMaxVocabulary);
  }
  if (in.has("vision_config")) {
    in.object("vision_config");
    config.has_vision = true;
  }
  read_text_config(in.object("text_config"), config);
  read_quantization(in.object("quantization_config"), config);
  CHECK_OK(in.status());
  CHECK_OK(config.check());
  return config;
}

Result<Config> Config::load(const std::filesystem::path& directory) {
  TRY(const MappedFile file, MappedFile::open(directory / "config.json"));
  TRY(const std::string_view text, text_of(file));
  return parse(text);
}

Result<GenerationConfig> GenerationConfig::parse(std::string_view text) {
  constexpr int64_t kMaxId = kMaxVocabulary - 1;
  constexpr const char* kFile = "generation_config.json";
  TRY(const json root, parse_document(text, kFile, ErrorCode::kConfig));
  JsonReader in(root, kFile, ErrorCode::kConfig);
  GenerationConfig config;
  if (in.has("do_sample")) in.boolean("do_sample", config.do_sample);
  if (in.has("temperature")) in.number("temperature", config.temperature, 0, 1e4);
  if (in.has("top_p")) in.number("top_p", config.top_p, 0, 1);
  if (in.has("top_k")) in.integer("top_k", config.top_k, 0, kMaxVocabulary);
  if (in.has("eos_token_id")) {
    std::vector<int64_t> ids;
    if (root.at("eos_token_id").is_array()) {
      in.integers("eos_token_id", ids, 0, kMaxId, 64);
    } else {
      in.integer("eos_token_id", ids.emplace_back(), 0, kMaxId);
    }
    for (const int64_t id : ids) config.eos_token_ids.push_back(static_cast<int32_t>(id));
  }
  if (in.has("dspark_confidence_temperatures")) {
    in.numbers("dspark_confidence_temperatures", config.dspark_confidence_temperatures, 1e-3, 1e3,
               kMaxDraftBlock);
  }
  CHECK_OK(in.status());
  return config;
}

Result<GenerationConfig> GenerationConfig::load(const std::filesystem::path& directory) {
  auto file = MappedFile::open(directory / "generation_config.json");
  if (!file && file.error().code == ErrorCode::kFileNotFound) return GenerationConfig{};
  if (!file) return tl::unexpected(file.error());
  TRY(const std::string_view text, text_of(*file));
  return parse(text);
}

}  // namespace tidemill
