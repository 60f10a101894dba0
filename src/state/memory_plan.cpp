#include "state/memory_plan.h"

#include <algorithm>
#include <limits>

namespace tidemill {
namespace {

using Section = MemoryPlan::Section;

// What a block holds. Offsets are aligned, so a little of it may be nobody's.
std::vector<Section> block_sections(const StateLayout& layout, int64_t blocks) {
  std::vector<Section> sections;
  int64_t rest = layout.block_bytes;
  const auto add = [&](std::string name, int64_t bytes) {
    rest -= bytes;
    sections.push_back({.name = std::move(name),
                        .bytes_per_token = static_cast<double>(bytes) / kBlockTokens,
                        .bytes = bytes * blocks});
  };
  for (size_t i = 0; i < layout.sources.size(); ++i) {
    const StateLayout::Source& s = layout.sources[i];
    const std::string where = fmt::format("cache {}, 1 per {}", i, s.ratio);
    add("entries of " + where, s.rows_per_block * layout.entry.bytes());
    add("index keys of " + where, s.rows_per_block * layout.key.bytes());
  }
  if (rest > 0) add("alignment of blocks", rest);
  return sections;
}

// What a slot holds.
std::vector<Section> slot_sections(const StateLayout& layout, int64_t slots) {
  std::vector<Section> sections;
  int64_t rest = layout.slot_bytes;
  const auto add = [&](std::string name, int64_t bytes) {
    rest -= bytes;
    if (bytes == 0) return;
    sections.push_back(
        {.name = std::move(name), .bytes_per_sequence = bytes, .bytes = bytes * slots});
  };
  const int64_t ring = layout.ring_rows * layout.window.bytes();
  const auto layers = static_cast<int64_t>(layout.ring_offset.size());
  const auto pairs = std::count_if(layout.sources.begin(), layout.sources.end(),
                                   [](const auto& s) { return s.ratio > 1; });
  add("windows, encoder half", layout.saved_layers * ring);
  add("windows, decoder half", (layers - layout.saved_layers) * ring);
  add("windows, drafter", static_cast<int64_t>(layout.draft_ring_offset.size()) * ring);
  add("half-open pairs", pairs * layout.pending_rows * layout.pending_row_bytes);
  add("alignment of slots", rest);
  return sections;
}

}  // namespace

Result<MemoryPlan> MemoryPlan::make(const StateLayout& layout, const MemoryOptions& options) {
  if (options.context < 1 || options.context > kMaxContext || options.sequences < 1 ||
      options.weights_bytes < 0 || options.workspace_bytes < 0 ||
      !(options.snapshot_share >= 0 && options.snapshot_share < 1)) {
    return fail(ErrorCode::kInvalidArgument,
                "no memory plan for a context of {} tokens, {} sequences, {} bytes of weights, {} "
                "of workspace and {} of the rest for snapshots",
                options.context, options.sequences, options.weights_bytes, options.workspace_bytes,
                options.snapshot_share);
  }
  const int64_t context_bytes = layout.blocks_for(options.context) * layout.block_bytes;
  const int64_t one = layout.slot_bytes + context_bytes;
  // Subtracted one by one: a sum could overflow.
  int64_t state = std::max<int64_t>(0, options.budget_bytes) - options.weights_bytes;
  if (state > 0) state -= options.workspace_bytes;
  if (state < one) {
    state = std::max<int64_t>(0, state);
    const int64_t blocks = (state - layout.slot_bytes) / std::max<int64_t>(1, layout.block_bytes);
    return fail(ErrorCode::kNoCapacity,
                "one sequence of {} tokens needs {} bytes of state, and of a budget of {} bytes {} "
                "are left after weights ({}) and workspace ({}): {}",
                options.context, one, options.budget_bytes, state, options.weights_bytes,
                options.workspace_bytes,
                blocks > 0 ? fmt::format("lower the context to {}", blocks * kBlockTokens)
                           : "raise the budget");
  }

  MemoryPlan plan;
  plan.budget_bytes = options.budget_bytes;
  plan.snapshot_bytes = std::min(
      static_cast<int64_t>(static_cast<double>(state) * options.snapshot_share), state - one);
  state -= plan.snapshot_bytes;
  plan.slots =
      std::clamp<int64_t>((state - context_bytes) / layout.slot_bytes, 1, options.sequences);
  state -= plan.slots * layout.slot_bytes;
  if (layout.block_bytes > 0) {
    plan.blocks =
        std::min<int64_t>(state / layout.block_bytes, std::numeric_limits<int32_t>::max());
  }
  state -= plan.blocks * layout.block_bytes;
  plan.block_bytes_per_token = (layout.block_bytes + kBlockTokens - 1) / kBlockTokens;

  plan.sections.push_back({.name = "weights", .bytes = options.weights_bytes});
  plan.sections.push_back({.name = "workspace", .bytes = options.workspace_bytes});
  for (Section& s : block_sections(layout, plan.blocks)) plan.sections.push_back(std::move(s));
  for (Section& s : slot_sections(layout, plan.slots)) plan.sections.push_back(std::move(s));
  plan.sections.push_back({.name = "window snapshots", .bytes = plan.snapshot_bytes});
  plan.sections.push_back({.name = "unused", .bytes = state});
  return plan;
}

std::string MemoryPlan::table() const {
  std::string text =
      fmt::format("{:<28}{:>12}{:>14}{:>18}\n", "section", "B/token", "B/sequence", "bytes");
  double per_token = 0;
  int64_t per_sequence = 0;
  const auto line = [&](std::string_view name, double token, int64_t sequence, int64_t bytes) {
    text += fmt::format("{:<28}{:>12}{:>14}{:>18}\n", name,
                        token > 0 ? fmt::format("{:.4g}", token) : "",
                        sequence > 0 ? fmt::format("{}", sequence) : "", bytes);
  };
  for (const Section& s : sections) {
    line(s.name, s.bytes_per_token, s.bytes_per_sequence, s.bytes);
    per_token += s.bytes_per_token;
    per_sequence += s.bytes_per_sequence;
  }
  line("total", per_token, per_sequence, budget_bytes);
  return text +
         fmt::format("{} sequences at a time, {} tokens in {} blocks\n", slots, tokens(), blocks);
}

}  // namespace tidemill
