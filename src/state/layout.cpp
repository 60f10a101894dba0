#include "state/layout.h"

#include <algorithm>

namespace tidemill {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kMinimumRollback = 6;

int64_t reserve(int64_t& end, int64_t bytes) {
  const int64_t begin = end;
  end += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return begin;
}

}  // namespace

Result<StateLayout> StateLayout::build(const Config& config, const Topology& topology,
                                       const Backend& backend) {
  StateLayout layout;
  layout.order = backend.product_order();
  layout.window = backend.window_format(config.head_dim);
  layout.entry = backend.entry_format(config.head_dim);
  layout.key = backend.index_format(config.index_head_dim);
  layout.window_tokens = config.sliding_window;
  // One target token and a whole draft may be undone.
  layout.rollback = std::max(config.dspark_block_size + 1, kMinimumRollback);
  // A prompt's last boundary is up to a block before its end.
  layout.reach = std::max(layout.rollback, kBlockTokens);
  layout.ring_rows = layout.window_tokens + layout.reach;
  layout.pending_rows = layout.rollback + 2;
  layout.pending_row_bytes = 2 * config.head_dim * static_cast<int64_t>(sizeof(float));

  for (const KvSource& kv : topology.kv_sources) {
    if (kv.ratio < 1 || kBlockTokens % kv.ratio != 0) {
      return fail(ErrorCode::kConfig,
                  "layer {}: compress ratio {} does not divide a block of {} tokens", kv.layer,
                  kv.ratio, kBlockTokens);
    }
    Source source;
    source.ratio = kv.ratio;
    source.rows_per_block = kBlockTokens / kv.ratio;
    source.entry_offset = reserve(layout.block_bytes, source.rows_per_block * layout.entry.bytes());
    source.key_offset = reserve(layout.block_bytes, source.rows_per_block * layout.key.bytes());
    if (kv.ratio > 1) {
      source.pending_offset =
          reserve(layout.slot_bytes, layout.pending_rows * layout.pending_row_bytes);
    }
    layout.sources.push_back(source);
  }
  const int64_t ring_bytes = layout.ring_rows * layout.window.bytes();
  for (size_t i = 0; i < topology.layers.size(); ++i) {
    layout.ring_offset.push_back(reserve(layout.slot_bytes, ring_bytes));
  }
  layout.saved_layers = topology.decoder_begin;
  for (int64_t i = 0; i < config.num_nextn_predict_layers; ++i) {
    layout.draft_ring_offset.push_back(reserve(layout.slot_bytes, ring_bytes));
  }
  return layout;
}

std::string StateLayout::fingerprint() const {
  const auto format = [](std::string_view name, const RowFormat& f) {
    return fmt::format(" {} {}x{}", name, static_cast<int>(f.kind), f.width);
  };
  std::string text = fmt::format("block {} tokens {} bytes", kBlockTokens, block_bytes);
  if (order == ProductOrder::kTiles) text += " in tile order";
  text += format("window", window) + format("entry", entry) + format("key", key);
  for (const Source& s : sources) {
    text += fmt::format(" source 1/{} at {} {}", s.ratio, s.entry_offset, s.key_offset);
  }
  return text + fmt::format(" rings {}+{} of {} rows, {} saved", ring_offset.size(),
                            draft_ring_offset.size(), window_tokens, saved_layers);
}

}  // namespace tidemill
