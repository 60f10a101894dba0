#include "ops/placed_weights.h"

#include <algorithm>

namespace tidemill {
namespace {

// A pointer of a view and how many bytes it leads to.
template <typename Visit>
void visit(Matrix& m, const Visit& tensor) {
  if (m.data == nullptr) return;
  tensor(m.data, m.rows * m.row_bytes());
  if (m.scales == nullptr) return;
  const bool blocks = m.format == WeightFormat::kFp8Block;
  tensor(m.scales, (blocks ? (m.rows + 31) / 32 : m.rows) * m.scale_columns());
}
template <typename Visit>
void visit(Bf16Vector& v, const Visit& tensor) {
  if (v.data != nullptr) tensor(v.data, v.size * int64_t{sizeof(uint16_t)});
}
template <typename Visit>
void visit(F32Vector& v, const Visit& tensor) {
  if (v.data != nullptr) tensor(v.data, v.size * int64_t{sizeof(float)});
}
template <typename Visit>
void visit(HcWeights& w, const Visit& tensor) {
  visit(w.fn, tensor), visit(w.base, tensor), visit(w.scale, tensor);
}
template <typename Visit>
void visit(ExpertWeights& w, const Visit& tensor) {
  visit(w.w1, tensor), visit(w.w3, tensor), visit(w.w2, tensor);
}
template <typename Visit>
void visit(LayerWeights& w, const Visit& tensor) {
  visit(w.attn_norm, tensor), visit(w.ffn_norm, tensor);
  visit(w.hc_attn, tensor), visit(w.hc_ffn, tensor);
  for (Matrix* m : {&w.attention.wq_a, &w.attention.wq_b, &w.attention.wkv, &w.attention.wo_a,
                    &w.attention.wo_b, &w.compressor.wkv, &w.compressor.wgate,
                    &w.compressor.index_wk, &w.indexer.wq_b, &w.indexer.weights_proj, &w.moe.gate,
                    &w.engram.table, &w.engram.wkv, &w.engram.q_weight, &w.engram.k_weight}) {
    visit(*m, tensor);
  }
  for (Bf16Vector* v : {&w.attention.q_norm, &w.attention.kv_norm, &w.compressor.norm,
                        &w.compressor.index_k_norm}) {
    visit(*v, tensor);
  }
  for (F32Vector* v : {&w.attention.sink, &w.moe.bias, &w.moe.bias_vl}) visit(*v, tensor);
  for (ExpertWeights& expert : w.moe.experts) visit(expert, tensor);
  visit(w.moe.shared, tensor);
}
template <typename Visit>
void visit(ModelWeights& w, const Visit& tensor) {
  visit(w.embed, tensor), visit(w.norm, tensor), visit(w.head, tensor);
  for (LayerWeights& layer : w.layers) visit(layer, tensor);
  for (LayerWeights& stage : w.draft.stages) visit(stage, tensor);
  for (Matrix* m :
       {&w.draft.main_proj, &w.draft.markov_embed, &w.draft.markov_head, &w.draft.confidence}) {
    visit(*m, tensor);
  }
  visit(w.draft.main_norm, tensor), visit(w.draft.norm, tensor);
}

// Memory of the host that is copied as a whole.
struct Range {
  const std::byte* begin;
  const std::byte* end;
  std::byte* placed;
};

// Tensors of a file do not overlap: each becomes a range of its own, well aligned. Tensors of an
// aliased checkpoint do: those that hang together become one.
std::vector<Range> ranges_of(ModelWeights& weights) {
  std::vector<Range> all;
  visit(weights, [&](const auto& data, int64_t bytes) {
    const auto* begin = reinterpret_cast<const std::byte*>(data);
    all.push_back({begin, begin + bytes, nullptr});
  });
  std::sort(all.begin(), all.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::vector<Range> merged;
  for (const Range& range : all) {
    if (!merged.empty() && range.begin < merged.back().end) {
      merged.back().end = std::max(merged.back().end, range.end);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

constexpr int64_t kAlignment = 256;
constexpr int64_t kSlack = 64;  // kernels read whole vectors

int64_t placed_bytes(const Range& range) {
  const int64_t size = range.end - range.begin + kSlack;
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

// What repeats itself is copied on the device from what is there, twice as much each time.
void copy(const Range& range, int64_t period, Backend& backend) {
  const int64_t bytes = range.end - range.begin;
  int64_t copied = period > 0 ? std::min(period, bytes) : bytes;
  backend.copy(range.placed, range.begin, copied);
  while (copied < bytes) {
    const int64_t next = std::min(copied, bytes - copied);
    backend.copy(range.placed + copied, range.placed, next);
    copied += next;
  }
}

int64_t table_bytes(const MoeWeights& moe) {
  return static_cast<int64_t>(moe.experts.size() * sizeof(ExpertWeights));
}

}  // namespace

int64_t PlacedWeights::size_of(const ModelWeights& weights) {
  ModelWeights copied = weights;
  int64_t bytes = 0;
  for (const Range& range : ranges_of(copied)) bytes += placed_bytes(range);
  for (const auto* layers : {&weights.layers, &weights.draft.stages}) {
    for (const LayerWeights& layer : *layers) bytes += table_bytes(layer.moe);
  }
  return bytes;
}

Status PlacedWeights::place_table(MoeWeights& moe, Backend& backend) {
  const int64_t bytes = table_bytes(moe);
  TRY(auto memory, backend.allocate(bytes));
  backend.copy(memory.get(), moe.experts.data(), bytes);
  moe.table = reinterpret_cast<const ExpertWeights*>(memory.get());
  memory_.push_back(std::move(memory));
  return {};
}

Result<PlacedWeights> PlacedWeights::create(const ModelWeights& weights, Backend& backend,
                                            int64_t period) {
  PlacedWeights result;
  result.weights_ = weights;

  std::vector<Range> ranges = ranges_of(result.weights_);
  // One allocation for all: thousands of small ones take seconds and waste pages.
  std::vector<int64_t> offset;
  for (const Range& range : ranges) {
    offset.push_back(result.bytes_);
    result.bytes_ += placed_bytes(range);
  }
  TRY(auto memory, backend.allocate(result.bytes_));
  for (size_t i = 0; i < ranges.size(); ++i) {
    ranges[i].placed = memory.get() + offset[i];
    copy(ranges[i], period, backend);
  }
  result.memory_.push_back(std::move(memory));
  visit(result.weights_, [&](auto& data, int64_t) {
    const auto* at = reinterpret_cast<const std::byte*>(data);
    const auto after =
        std::upper_bound(ranges.begin(), ranges.end(), at,
                         [](const std::byte* p, const Range& r) { return p < r.begin; });
    const Range& range = *std::prev(after);
    data = reinterpret_cast<std::remove_reference_t<decltype(data)>>(range.placed +
                                                                     (at - range.begin));
  });
  for (auto* layers : {&result.weights_.layers, &result.weights_.draft.stages}) {
    for (LayerWeights& layer : *layers) CHECK_OK(result.place_table(layer.moe, backend));
  }
  CHECK_OK(backend.finish());
  return result;
}

}  // namespace tidemill
