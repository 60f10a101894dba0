#include "cli/inspect_report.h"

#include <algorithm>
#include <array>

namespace tidemill::cli {
namespace {

struct KindRule {
  std::string_view fragment;  // of the tensor's name; the first rule that fits counts
  std::string_view kind;
};
constexpr std::array kRules = {
    KindRule{"mtp.", "drafter"},
    KindRule{"vision", "vision (not used)"},
    KindRule{".ffn.experts.", "routed experts"},
    KindRule{".ffn.shared_experts.", "shared experts"},
    KindRule{".ffn.gate.", "router"},
    KindRule{".engram.embed.", "Engram tables"},
    KindRule{".engram.", "Engram mixing"},
    KindRule{".compressor.", "compressor, indexer"},
    KindRule{".indexer.", "compressor, indexer"},
    KindRule{"hc_", "hyper-connections"},
    KindRule{"norm.weight", "norms"},
    KindRule{".attn.", "attention"},
    KindRule{"embed.", "embedding"},
    KindRule{"head.", "output head"},
};
constexpr std::string_view kOther = "other";
constexpr std::array kOrder = {
    std::string_view("embedding"),           std::string_view("Engram tables"),
    std::string_view("Engram mixing"),       std::string_view("attention"),
    std::string_view("compressor, indexer"), std::string_view("router"),
    std::string_view("routed experts"),      std::string_view("shared experts"),
    std::string_view("hyper-connections"),   std::string_view("norms"),
    std::string_view("output head"),         std::string_view("drafter"),
    std::string_view("vision (not used)"),   kOther,
};

int64_t elements(const TensorView& tensor) {
  int64_t count = 1;
  for (const int64_t extent : tensor.shape) count *= extent;
  return count;
}

// Gathered parts are read by rows, routed experts by those that are chosen, the rest as a whole.
int64_t read_bytes(const TensorKind& kind, const Config& config) {
  if (kind.name == "embedding") return config.hidden_size * 2;
  if (kind.name == "Engram tables") {
    const int64_t row = config.engram_head_dim + config.engram_head_dim / 32;
    return static_cast<int64_t>(config.engram_layer_ids.size()) * config.engram_columns() * row;
  }
  if (kind.name == "routed experts") {
    return kind.bytes / config.n_routed_experts * config.num_experts_per_tok;
  }
  const bool unused =
      kind.name == "drafter" || kind.name == "vision (not used)" || kind.name == kOther;
  return unused ? 0 : kind.bytes;
}

void add_state(const Model& model, const StateLayout& layout, InspectReport& report) {
  const Config& config = model.config();
  report.state_token_bytes = layout.block_bytes / kBlockTokens;
  report.state_sequence_bytes = layout.slot_bytes;
  for (const LayerRole& role : model.topology().layers) {
    report.state_read_bytes += layout.window_tokens * layout.window.bytes();
    if (role.kv_source >= 0) report.state_read_bytes += config.index_topk * layout.entry.bytes();
    if (role.owns_index && role.ratio > 0 && !role.reads_pool) {
      report.index_key_bytes_per_token += layout.key.bytes() / role.ratio;
    }
    if (role.owns_index && role.reads_pool) {
      report.state_read_bytes +=
          config.candidate_topk_blocks * config.candidate_block_size * layout.key.bytes();
    }
  }
}

}  // namespace

std::string_view kind_of_tensor(std::string_view name) {
  for (const KindRule& rule : kRules) {
    if (name.find(rule.fragment) != std::string_view::npos) return rule.kind;
  }
  return kOther;
}

InspectReport inspect_model(const Model& model, const StateLayout& layout) {
  InspectReport report;
  for (const std::string_view name : kOrder) report.kinds.push_back({.name = name});
  for (const auto& [name, tensor] : model.checkpoint().tensors()) {
    const std::string_view kind_name = kind_of_tensor(name);
    TensorKind& kind = *std::find_if(report.kinds.begin(), report.kinds.end(),
                                     [&](const TensorKind& k) { return k.name == kind_name; });
    const bool is_scale = name.ends_with(".scale");
    const bool is_packed = tensor.type == TensorType::kI8 || tensor.type == TensorType::kU8;
    ++kind.tensors;
    kind.bytes += static_cast<int64_t>(tensor.data.size());
    if (!is_scale) kind.parameters += elements(tensor) * (is_packed ? 2 : 1);  // two FP4 a byte
  }
  std::erase_if(report.kinds, [](const TensorKind& kind) { return kind.tensors == 0; });
  report.total.name = "total";
  for (TensorKind& kind : report.kinds) {
    kind.read_bytes = read_bytes(kind, model.config());
    report.total.tensors += kind.tensors;
    report.total.parameters += kind.parameters;
    report.total.bytes += kind.bytes;
    report.total.read_bytes += kind.read_bytes;
  }
  add_state(model, layout, report);
  return report;
}

int64_t tokens_that_fit(const InspectReport& report, int64_t memory_bytes, int64_t sequences) {
  const int64_t left = memory_bytes - report.total.bytes - sequences * report.state_sequence_bytes;
  if (left < 0 || report.state_token_bytes == 0) return -1;
  return left / report.state_token_bytes;
}

}  // namespace tidemill::cli
