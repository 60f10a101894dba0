#include "model/bind_weights.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <functional>
#include <optional>
#include <unordered_set>
#include <utility>

namespace tidemill {

namespace {

int64_t blocks_of_32(int64_t size) { return (size + 31) / 32; }

// Looks tensors up by name. The first failure is kept; later look-ups then return empty views, so
// that the code below reads as the list of names that it is.
class Binder {
 public:
  using Lookup = std::function<Result<const TensorView*>(const ExpectedTensor&)>;
  Binder(Lookup get, std::function<bool(const std::string&)> has, const Config& config,
         const Topology& topology)
      : get_(std::move(get)), has_(std::move(has)), config_(config), topology_(topology) {}

  Result<BoundWeights> bind();
  // Of the checkpoint's tensors, those that nothing asked for and that are not the vision tower's.
  std::vector<std::string> unexpected(const Checkpoint& checkpoint) const;

 private:
  bool ok() const { return !error_; }

  const TensorView* tensor(const std::string& name, TensorType type,
                           std::initializer_list<int64_t> shape);
  // Data of a tensor of multi-byte elements, at an address that is a multiple of their size.
  const std::byte* aligned_data(const TensorView& view);

  Bf16Vector bf16_vector(const std::string& name, int64_t size);
  F32Vector f32_vector(const std::string& name, int64_t size);
  Matrix bf16(const std::string& name, int64_t rows, int64_t cols);
  Matrix f32(const std::string& name, int64_t rows, int64_t cols);
  // `name`.weight and `name`.scale.
  Matrix fp8(const std::string& name, int64_t rows, int64_t cols);
  Matrix fp8_rows(const std::string& name, int64_t rows, int64_t cols);
  Matrix fp4(const std::string& name, int64_t rows, int64_t cols);
  Matrix scaled(const std::string& name, WeightFormat format, int64_t rows, int64_t cols,
                int64_t scale_rows);

  HcWeights hyper_connection(const std::string& prefix);
  AttentionWeights attention(const std::string& prefix);
  CompressorWeights compressor(const std::string& prefix, int64_t ratio);
  IndexerWeights indexer(const std::string& prefix);
  ExpertWeights shared_expert(const std::string& prefix);
  ExpertWeights routed_expert(const std::string& prefix);
  MoeWeights moe(const std::string& prefix, int64_t experts);
  EngramWeights engram(const std::string& prefix, int64_t table);
  LayerWeights block(const std::string& prefix, int64_t experts);
  LayerWeights layer(int64_t i);
  DraftWeights drafter();

  const Lookup get_;
  const std::function<bool(const std::string&)> has_;
  const Config& config_;
  const Topology& topology_;
  std::unordered_set<const TensorView*> bound_;
  std::vector<std::unique_ptr<std::byte[]>> aligned_;
  std::optional<Error> error_;
};

const TensorView* Binder::tensor(const std::string& name, TensorType type,
                                 std::initializer_list<int64_t> shape) {
  if (!ok()) return nullptr;
  auto view = get_({name, type, shape});
  if (!view) {
    error_ = std::move(view).error();
    return nullptr;
  }
  bound_.insert(*view);
  return *view;
}

const std::byte* Binder::aligned_data(const TensorView& view) {
  const auto address = reinterpret_cast<uintptr_t>(view.data.data());
  if (address % static_cast<uintptr_t>(byte_size(view.type)) == 0) return view.data.data();
  auto& copy = aligned_.emplace_back(new std::byte[view.data.size()]);
  std::memcpy(copy.get(), view.data.data(), view.data.size());
  return copy.get();
}

Bf16Vector Binder::bf16_vector(const std::string& name, int64_t size) {
  const TensorView* view = tensor(name, TensorType::kBf16, {size});
  if (view == nullptr) return {};
  return {reinterpret_cast<const uint16_t*>(aligned_data(*view)), size};
}

F32Vector Binder::f32_vector(const std::string& name, int64_t size) {
  const TensorView* view = tensor(name, TensorType::kF32, {size});
  if (view == nullptr) return {};
  return {reinterpret_cast<const float*>(aligned_data(*view)), size};
}

Matrix Binder::bf16(const std::string& name, int64_t rows, int64_t cols) {
  const TensorView* view = tensor(name, TensorType::kBf16, {rows, cols});
  if (view == nullptr) return {};
  return {WeightFormat::kBf16, rows, cols, aligned_data(*view), nullptr};
}

Matrix Binder::f32(const std::string& name, int64_t rows, int64_t cols) {
  const TensorView* view = tensor(name, TensorType::kF32, {rows, cols});
  if (view == nullptr) return {};
  return {WeightFormat::kF32, rows, cols, aligned_data(*view), nullptr};
}

Matrix Binder::scaled(const std::string& name, WeightFormat format, int64_t rows, int64_t cols,
                      int64_t scale_rows) {
  const bool fp4_bytes = format == WeightFormat::kFp4Row;
  const TensorView* weight =
      tensor(name + ".weight", fp4_bytes ? TensorType::kI8 : TensorType::kF8E4M3,
             {rows, fp4_bytes ? cols / 2 : cols});
  const TensorView* scale =
      tensor(name + ".scale", TensorType::kF8E8M0, {scale_rows, blocks_of_32(cols)});
  if (weight == nullptr || scale == nullptr) return {};
  return {format, rows, cols, weight->data.data(),
          reinterpret_cast<const uint8_t*>(scale->data.data())};
}

Matrix Binder::fp8(const std::string& name, int64_t rows, int64_t cols) {
  return scaled(name, WeightFormat::kFp8Block, rows, cols, blocks_of_32(rows));
}
Matrix Binder::fp8_rows(const std::string& name, int64_t rows, int64_t cols) {
  return scaled(name, WeightFormat::kFp8Row, rows, cols, rows);
}
Matrix Binder::fp4(const std::string& name, int64_t rows, int64_t cols) {
  return scaled(name, WeightFormat::kFp4Row, rows, cols, rows);
}

HcWeights Binder::hyper_connection(const std::string& prefix) {
  const int64_t streams = config_.hc_mult;
  const int64_t coefficients = (2 + streams) * streams;  // pre, post, comb
  return {.fn = f32(prefix + "_fn", coefficients, streams * config_.hidden_size),
          .base = f32_vector(prefix + "_base", coefficients),
          .scale = f32_vector(prefix + "_scale", 3)};
}

AttentionWeights Binder::attention(const std::string& prefix) {
  const Config& c = config_;
  const int64_t heads = c.num_attention_heads;
  return {.wq_a = fp8(prefix + "wq_a", c.q_lora_rank, c.hidden_size),
          .q_norm = bf16_vector(prefix + "q_norm.weight", c.q_lora_rank),
          .wq_b = fp8(prefix + "wq_b", heads * c.head_dim, c.q_lora_rank),
          .wkv = fp8(prefix + "wkv", c.head_dim, c.hidden_size),
          .kv_norm = bf16_vector(prefix + "kv_norm.weight", c.head_dim),
          .sink = f32_vector(prefix + "attn_sink", heads),
          .wo_a = fp8(prefix + "wo_a", c.o_groups * c.o_lora_rank, heads / c.o_groups * c.head_dim),
          .wo_b = fp8(prefix + "wo_b", c.hidden_size, c.o_groups * c.o_lora_rank)};
}

// Ratio 1 makes an entry of a single token: there is nothing to weigh, so no gate.
CompressorWeights Binder::compressor(const std::string& prefix, int64_t ratio) {
  const Config& c = config_;
  return {.wkv = bf16(prefix + "compressor.wkv.weight", c.head_dim, c.hidden_size),
          .wgate = ratio == 1 ? Matrix{}
                              : bf16(prefix + "compressor.wgate.weight", c.head_dim, c.hidden_size),
          .norm = bf16_vector(prefix + "compressor.norm.weight", c.head_dim),
          .index_wk = bf16(prefix + "indexer.wk.weight", c.index_head_dim, c.head_dim),
          .index_k_norm = bf16_vector(prefix + "indexer.k_norm.weight", c.index_head_dim)};
}

IndexerWeights Binder::indexer(const std::string& prefix) {
  const Config& c = config_;
  return {.wq_b = fp8(prefix + "wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank),
          .weights_proj = bf16(prefix + "weights_proj.weight", c.index_n_heads, c.hidden_size)};
}

ExpertWeights Binder::shared_expert(const std::string& prefix) {
  const int64_t hidden = config_.hidden_size, inter = config_.moe_intermediate_size;
  return {.w1 = fp8(prefix + "w1", inter, hidden),
          .w3 = fp8(prefix + "w3", inter, hidden),
          .w2 = fp8(prefix + "w2", hidden, inter)};
}

ExpertWeights Binder::routed_expert(const std::string& prefix) {
  if (config_.fp8_experts) return shared_expert(prefix);
  const int64_t hidden = config_.hidden_size, inter = config_.moe_intermediate_size;
  return {.w1 = fp4(prefix + "w1", inter, hidden),
          .w3 = fp4(prefix + "w3", inter, hidden),
          .w2 = fp4(prefix + "w2", hidden, inter)};
}

MoeWeights Binder::moe(const std::string& prefix, int64_t experts) {
  MoeWeights out;
  out.gate = bf16(prefix + "gate.weight", experts, config_.hidden_size);
  out.bias = f32_vector(prefix + "gate.bias", experts);
  if (has_(prefix + "gate.bias_vl")) {  // text-only files may lack it
    out.bias_vl = f32_vector(prefix + "gate.bias_vl", experts);
  }
  // One by one: a configuration that claims too many fails at the first that is missing.
  for (int64_t e = 0; e < experts && ok(); ++e) {
    out.experts.push_back(routed_expert(fmt::format("{}experts.{}.", prefix, e)));
  }
  out.shared = shared_expert(prefix + "shared_experts.");
  return out;
}

EngramWeights Binder::engram(const std::string& prefix, int64_t table) {
  const Config& c = config_;
  return {.table = fp8_rows(prefix + "embed", c.engram_num_embeddings[static_cast<size_t>(table)],
                            c.engram_head_dim),
          .wkv = fp8(prefix + "wkv", (c.hc_mult + 1) * c.hidden_size,
                     c.engram_columns() * c.engram_head_dim),
          .q_weight = bf16(prefix + "q_weight", c.hc_mult, c.hidden_size),
          .k_weight = bf16(prefix + "k_weight", c.hc_mult, c.hidden_size)};
}

LayerWeights Binder::block(const std::string& prefix, int64_t experts) {
  LayerWeights out;
  out.attn_norm = bf16_vector(prefix + "attn_norm.weight", config_.hidden_size);
  out.ffn_norm = bf16_vector(prefix + "ffn_norm.weight", config_.hidden_size);
  out.hc_attn = hyper_connection(prefix + "hc_attn");
  out.hc_ffn = hyper_connection(prefix + "hc_ffn");
  out.attention = attention(prefix + "attn.");
  out.moe = moe(prefix + "ffn.", experts);
  return out;
}

LayerWeights Binder::layer(int64_t i) {
  const std::string prefix = fmt::format("layers.{}.", i);
  const LayerRole& role = topology_.layers[static_cast<size_t>(i)];
  LayerWeights out = block(prefix, config_.n_routed_experts);
  if (role.owns_kv) out.compressor = compressor(prefix + "attn.", role.ratio);
  if (role.owns_index) out.indexer = indexer(prefix + "attn.indexer.");
  if (role.engram >= 0) out.engram = engram(prefix + "engram.", role.engram);
  return out;
}

// What the stages share is stored with the first (inputs) and the last (outputs) of them.
DraftWeights Binder::drafter() {
  const Config& c = config_;
  DraftWeights out;
  const int64_t stages = c.num_nextn_predict_layers;
  if (stages == 0) return out;
  for (int64_t i = 0; i < stages && ok(); ++i) {
    out.stages.push_back(block(fmt::format("mtp.{}.", i), c.dspark_n_routed_experts));
  }
  const auto taps = static_cast<int64_t>(c.dspark_target_layer_ids.size());
  out.main_proj = fp8("mtp.0.main_proj", c.hidden_size, taps * c.hidden_size);
  out.main_norm = bf16_vector("mtp.0.main_norm.weight", c.hidden_size);
  const std::string last = fmt::format("mtp.{}.", stages - 1);
  const int64_t rank = c.dspark_markov_rank;
  out.norm = bf16_vector(last + "norm.weight", c.hidden_size);
  out.markov_embed = bf16(last + "markov_head.embed.weight", c.vocab_size, rank);
  out.markov_head = bf16(last + "markov_head.head.weight", c.vocab_size, rank);
  out.confidence = bf16(last + "confidence_head.proj.weight", 1, c.hidden_size + rank);
  return out;
}

std::vector<std::string> Binder::unexpected(const Checkpoint& checkpoint) const {
  constexpr std::array<std::string_view, 5> kVision = {"vision.", "aligner.", "image_start",
                                                       "image_end", "image_newline"};
  std::vector<std::string> names;
  for (const auto& [name, view] : checkpoint.tensors()) {
    const bool vision = std::any_of(kVision.begin(), kVision.end(), [&](std::string_view prefix) {
      return name.starts_with(prefix);
    });
    if (!vision && !bound_.contains(&view)) names.push_back(name);
  }
  return names;
}

Result<BoundWeights> Binder::bind() {
  const Config& c = config_;
  BoundWeights out;
  out.weights.embed = bf16("embed.weight", c.vocab_size, c.hidden_size);
  out.weights.norm = bf16_vector("norm.weight", c.hidden_size);
  out.weights.head = bf16("head.weight", c.vocab_size, c.hidden_size);
  for (int64_t i = 0; i < c.num_hidden_layers && ok(); ++i) {
    out.weights.layers.push_back(layer(i));
  }
  out.weights.draft = drafter();
  if (error_) return tl::unexpected(*error_);
  out.aligned = std::move(aligned_);
  return out;
}

}  // namespace

int64_t ExpectedTensor::bytes() const {
  int64_t count = byte_size(type);
  for (const int64_t size : shape) count *= size;
  return count;
}

std::vector<ExpectedTensor> expected_tensors(const Config& config, const Topology& topology) {
  std::vector<ExpectedTensor> tensors;
  const TensorView nothing;
  const auto note = [&](const ExpectedTensor& tensor) -> Result<const TensorView*> {
    tensors.push_back(tensor);
    return &nothing;
  };
  const auto bound = Binder(
                         note, [](const std::string&) { return false; }, config, topology)
                         .bind();
  assert(bound);
  return tensors;
}

Result<BoundWeights> bind_weights(const Checkpoint& checkpoint, const Config& config,
                                  const Topology& topology) {
  const auto get = [&](const ExpectedTensor& t) { return checkpoint.get(t.name, t.type, t.shape); };
  const auto has = [&](const std::string& name) { return checkpoint.find(name) != nullptr; };
  Binder binder(get, has, config, topology);
  TRY(BoundWeights out, binder.bind());
  out.unexpected = binder.unexpected(checkpoint);
  return out;
}

}  // namespace tidemill
