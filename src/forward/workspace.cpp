#include "forward/workspace.h"

#include <algorithm>

namespace tidemill {
namespace {

// Adds up sizes first and hands out addresses in a second pass over the same list.
class Arena {
 public:
  Rows rows(int64_t count, int64_t width, Element element = Element::kF32) {
    return {take(count * width * bytes_of(element)), count, width, width, element};
  }
  template <typename T>
  T* array(int64_t count) {
    return reinterpret_cast<T*>(take(count * static_cast<int64_t>(sizeof(T))));
  }
  int64_t bytes() const { return bytes_; }
  void start(std::byte* memory) {
    memory_ = memory;
    bytes_ = 0;
  }

 private:
  std::byte* take(int64_t bytes) {
    std::byte* result = memory_ == nullptr ? nullptr : memory_ + bytes_;
    bytes_ += (bytes + 63) / 64 * 64;
    return result;
  }
  std::byte* memory_ = nullptr;
  int64_t bytes_ = 0;
};

void lay_out(Arena& arena, const Backend& backend, const Config& c, const StateLayout& layout,
             int64_t t, Workspace& w) {
  const Element narrow = backend.narrow_rows();
  const int64_t hidden = c.hidden_size;
  const int64_t hc = c.hc_mult;
  const int64_t taps = static_cast<int64_t>(c.dspark_target_layer_ids.size()) * hidden;
  w.h = arena.rows(t, hc * hidden);
  w.h_spare = arena.rows(t, hc * hidden);
  w.first_pre = arena.rows(1, hc);
  w.x = arena.rows(t, hidden);
  w.x_spare = arena.rows(t, hidden);
  w.y = arena.rows(t, hidden);
  w.pre = arena.rows(t, hc);
  w.pre_spare = arena.rows(t, hc);
  w.pre_ffn = arena.rows(t, hc);
  w.post = arena.rows(t, hc);
  w.comb = arena.rows(t, hc * hc);
  w.query_latent = arena.rows(t, c.q_lora_rank);
  w.q = arena.rows(t, c.num_attention_heads * c.head_dim, narrow);
  w.o = arena.rows(t, c.num_attention_heads * c.head_dim, narrow);
  w.kv = arena.rows(t, c.head_dim);
  w.grouped = arena.rows(t, c.o_groups * c.o_lora_rank, narrow);
  w.fresh = arena.array<std::byte>(t * layout.window.bytes());
  w.fresh_offset = arena.array<int64_t>(t);
  w.index_q = arena.rows(t, c.index_n_heads * c.index_head_dim);
  w.index_weight = arena.rows(t, c.index_n_heads);
  w.pair_kv = arena.rows(t, 2 * c.head_dim);
  w.latent = arena.rows(t, c.head_dim);
  w.index_key = arena.rows(t, c.index_head_dim);
  w.selected = arena.array<int32_t>(t * c.index_topk);
  w.pool = arena.array<int32_t>(t * c.candidate_topk_blocks);
  const int64_t chosen = std::max(c.num_experts_per_tok, c.dspark_num_experts_per_tok);
  w.expert_ids = arena.array<int32_t>(t * chosen);
  w.expert_weights = arena.array<float>(t * chosen);
  w.engram_values = arena.rows(t, c.engram_columns() * c.engram_head_dim);
  w.engram_kvv = arena.rows(t, (hc + 1) * hidden);
  w.engram_gate = arena.rows(t, hc);
  w.taps = arena.rows(t, taps);
  w.taps_spare = arena.rows(t, taps);
  w.main_x = arena.rows(t, hidden);
  w.rope_plain = arena.rows(t, c.qk_rope_head_dim);
  w.rope_compressed = arena.rows(t, c.qk_rope_head_dim);
  w.rope_plain_tail = arena.rows(t, c.qk_rope_head_dim);
  w.rope_compressed_tail = arena.rows(t, c.qk_rope_head_dim);
  w.rope_draft = arena.rows(t, c.qk_rope_head_dim);
  for (int64_t ratio = 1; ratio <= 2; ++ratio) {
    w.rope_entries[ratio] = arena.rows(t, c.qk_rope_head_dim);
  }
  w.z = arena.rows(t, hidden);
  w.draft_hidden = arena.rows(t, hidden + c.dspark_markov_rank);
  w.draft_confidence = arena.rows(t, 1);
  w.drawn = arena.array<Drawn>(t);
  w.frequencies_plain = arena.array<float>(c.qk_rope_head_dim / 2);
  w.frequencies_compressed = arena.array<float>(c.qk_rope_head_dim / 2);
}

// What no step changes.
void fill_constants(Backend& backend, const Config& config, const StateLayout& layout,
                    int64_t max_tokens, const Workspace& w) {
  const auto set = [&](void* to, const auto& values) {
    backend.copy(to, values.data(), static_cast<int64_t>(values.size() * sizeof(values[0])));
  };
  std::vector<float> first(static_cast<size_t>(config.hc_mult));
  first[0] = 1;
  set(w.first_pre.data, first);
  std::vector<int64_t> offset(static_cast<size_t>(max_tokens));
  for (size_t t = 0; t < offset.size(); ++t) {
    offset[t] = static_cast<int64_t>(t) * layout.window.bytes();
  }
  set(w.fresh_offset, offset);
  set(w.frequencies_plain, rope_frequencies(config, false));
  set(w.frequencies_compressed, rope_frequencies(config, true));
}

}  // namespace

int64_t Workspace::size_of(const Backend& backend, const Config& config, const StateLayout& layout,
                           int64_t max_tokens) {
  Workspace sizes;
  Arena arena;
  lay_out(arena, backend, config, layout, max_tokens, sizes);
  return arena.bytes();
}

Result<Workspace> Workspace::create(Backend& backend, const Config& config,
                                    const StateLayout& layout, int64_t max_tokens) {
  Workspace workspace;
  Arena arena;
  lay_out(arena, backend, config, layout, max_tokens, workspace);
  workspace.bytes = arena.bytes();
  TRY(auto buffer, backend.allocate(arena.bytes()));
  arena.start(buffer.get());
  lay_out(arena, backend, config, layout, max_tokens, workspace);
  workspace.buffers_.push_back(std::move(buffer));
  fill_constants(backend, config, layout, max_tokens, workspace);
  return workspace;
}

}  // namespace tidemill
