#include "state/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "state/test_state.h"

namespace tidemill {
namespace {

using testing::HasSubstr;

// The released model, with or without its drafter.
StateLayout released_layout(int64_t draft_stages = 3) {
  Config c;
  c.head_dim = 512;
  c.index_head_dim = 128;
  c.sliding_window = 128;
  c.dspark_block_size = 5;
  c.num_nextn_predict_layers = draft_stages;
  Topology t;
  t.layers.resize(40);
  t.kv_sources = {{2, 2}, {8, 2}, {14, 2}, {20, 1}};
  t.decoder_begin = 20;
  static ThreadTeam team(1);
  static ReferenceBackend backend(team, Rounding{});
  return *StateLayout::build(c, t, backend);
}

int64_t total(const MemoryPlan& plan) {
  return std::accumulate(plan.sections.begin(), plan.sections.end(), int64_t{0},
                         [](int64_t sum, const auto& s) { return sum + s.bytes; });
}
const MemoryPlan::Section& section(const MemoryPlan& plan, std::string_view name) {
  const auto found = std::ranges::find(plan.sections, name, &MemoryPlan::Section::name);
  EXPECT_NE(found, plan.sections.end()) << name;
  return *found;
}

constexpr int64_t kGiB = int64_t{1} << 30;

// User case 70: bytes per token and section by hand: (3/2 + 1) x (288 + 68) = 890.
TEST(MemoryPlan, SectionsOfTheReleasedModel) {
  const auto plan = *MemoryPlan::make(released_layout(), {.budget_bytes = 100 * kGiB,
                                                          .context = 1048576,
                                                          .sequences = 64,
                                                          .weights_bytes = 30 * kGiB,
                                                          .workspace_bytes = 2 * kGiB});
  EXPECT_EQ(plan.block_bytes_per_token, 890);
  EXPECT_EQ(section(plan, "entries of cache 0, 1 per 2").bytes_per_token, 144);
  EXPECT_EQ(section(plan, "index keys of cache 2, 1 per 2").bytes_per_token, 34);
  EXPECT_EQ(section(plan, "entries of cache 3, 1 per 1").bytes_per_token, 288);
  EXPECT_EQ(section(plan, "index keys of cache 3, 1 per 1").bytes_per_token, 68);
  EXPECT_EQ(section(plan, "windows, encoder half").bytes_per_sequence, 2'703'360);
  EXPECT_EQ(section(plan, "windows, decoder half").bytes_per_sequence, 2'703'360);
  EXPECT_EQ(section(plan, "windows, drafter").bytes_per_sequence, 3 * 256 * 528);
  // 3 sources, 8 rows of k and g in float32.
  EXPECT_EQ(section(plan, "half-open pairs").bytes_per_sequence, 3 * 8 * 2 * 512 * 4);
  EXPECT_EQ(plan.slots, 64);
  EXPECT_GE(plan.tokens(), 1048576);
  EXPECT_EQ(total(plan), 100 * kGiB);
  EXPECT_LT(section(plan, "unused").bytes, 890 * kBlockTokens);
  const std::string table = plan.table();
  EXPECT_THAT(table, HasSubstr("B/token"));
  EXPECT_THAT(table, HasSubstr("64 sequences at a time"));
}

TEST(MemoryPlan, DraftLayersCostWindowsOnly) {
  const StateLayout with = released_layout(3);
  const StateLayout without = released_layout(0);
  EXPECT_EQ(with.block_bytes, without.block_bytes);
  constexpr int64_t ring = 256 * 528;
  EXPECT_EQ(with.slot_bytes - without.slot_bytes, 3 * ring);
}

TEST(MemoryPlan, OneSequenceOfTheContextAlwaysFits) {
  const StateLayout layout = released_layout();
  const int64_t one = layout.slot_bytes + layout.block_bytes * 8;
  const MemoryOptions options{.budget_bytes = one, .context = 1000, .sequences = 8};
  const auto plan = *MemoryPlan::make(layout, options);
  EXPECT_EQ(plan.slots, 1);
  EXPECT_EQ(plan.blocks, 8);
  EXPECT_EQ(plan.snapshot_bytes, 0);  // they give way
  EXPECT_EQ(total(plan), one);
  for (const int64_t more : {int64_t{1}, layout.slot_bytes, 7 * layout.slot_bytes, kGiB}) {
    MemoryOptions larger = options;
    larger.budget_bytes += more;
    const auto p = *MemoryPlan::make(layout, larger);
    EXPECT_GE(p.blocks, 8);
    EXPECT_LE(p.slots, 8);
    EXPECT_EQ(total(p), larger.budget_bytes);
    EXPECT_LE(p.snapshot_bytes, larger.budget_bytes / 16);
  }
}

TEST(MemoryPlan, TooSmallABudgetIsRefusedWithBothNumbers) {
  const StateLayout layout = released_layout();
  const int64_t one = layout.slot_bytes + layout.block_bytes * 8;
  const auto refused = [&](MemoryOptions options) {
    const auto plan = MemoryPlan::make(layout, options);
    EXPECT_FALSE(plan);
    return plan ? std::string() : plan.error().message;
  };
  const std::string text = refused(
      {.budget_bytes = one - 1 + 50, .context = 1000, .weights_bytes = 20, .workspace_bytes = 30});
  EXPECT_THAT(text, HasSubstr(fmt::format("needs {} bytes", one)));
  EXPECT_THAT(text, HasSubstr(fmt::format("{} are left", one - 1)));
  EXPECT_THAT(text, HasSubstr("lower the context to 896"));
  EXPECT_THAT(refused({.budget_bytes = -5, .context = 1}), HasSubstr("raise the budget"));
  const int64_t huge = INT64_MAX;
  EXPECT_THAT(
      refused({.budget_bytes = 5, .context = 1, .weights_bytes = huge, .workspace_bytes = huge}),
      HasSubstr("0 are left"));
  refused({.budget_bytes = kGiB, .context = 0});
  refused({.budget_bytes = kGiB, .context = huge});
  refused({.budget_bytes = kGiB, .context = 1, .sequences = 0});
  refused({.budget_bytes = kGiB, .context = 1, .snapshot_share = 1});
}

}  // namespace
}  // namespace tidemill
