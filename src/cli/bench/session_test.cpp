#include "cli/bench/session.h"

#include <gmock/gmock.h>

namespace tidemill::cli {
namespace {

using testing::ElementsAre;

constexpr ModelLimits kLimits{.context = 4096, .max_drafts = 5};

std::vector<int64_t> loads(const CellGroup& group) {
  std::vector<int64_t> list;
  for (const CellShape& cell : group.cells) list.push_back(cell.concurrency);
  return list;
}

TEST(PlanGroups, AWorkloadHasAnEngineForEachDraftMode) {
  BenchOptions options;
  options.drafts = {"off", "dynamic"};
  options.concurrency = {1, 200};
  options.prompt = "uniform:5-30";
  options.output = "fixed:10";
  const auto groups = *plan_groups(options, kLimits);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[1].drafts, "dynamic");
  EXPECT_THAT(loads(groups[1]), ElementsAre(1, 200));
  EXPECT_EQ(groups[0].sequences, 200);
  EXPECT_EQ(groups[0].context, 40);
  EXPECT_EQ(groups[0].chunk, 512);
  EXPECT_GE(groups[1].chunk, 200 * 6);  // all of them with all their drafts
  options.chunk_given = true;
  options.engine.chunk = 700;
  EXPECT_EQ((*plan_groups(options, kLimits))[1].chunk, 700);
}

TEST(PlanGroups, AnOpenLoopOrAFileLeavesTheContextToTheModel) {
  BenchOptions options;
  options.rates = {2, 4};
  options.workload = "file.jsonl";
  const auto groups = *plan_groups(options, kLimits);
  ASSERT_EQ(groups[0].cells.size(), 2u);
  EXPECT_EQ(groups[0].cells[1].rate, 4);
  EXPECT_EQ(groups[0].cells[1].concurrency, 0);
  EXPECT_EQ(groups[0].context, 0);
}

TEST(PlanGroups, SweepsAreProducts) {
  BenchOptions options;
  options.sweep = "prefill";
  options.chunks = {64, 128};
  options.prompts = {100, 300};
  options.batches = {1, 2, 3};
  auto groups = *plan_groups(options, kLimits);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[1].chunk, 128);
  EXPECT_EQ(groups[1].context, 301);
  EXPECT_THAT(loads(groups[1]), ElementsAre(1, 2, 3, 1, 2, 3));

  options.sweep = "decode";
  options.contexts = {16, 64};
  groups = *plan_groups(options, kLimits);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_THAT(loads(groups[0]), ElementsAre(1, 2, 3, 1, 2, 3));
  EXPECT_GE(groups[0].context, 64 + 32);
}

// Output is needed for the steps in which others are still in prefill.
TEST(PlanGroups, FilledTokensAreNotComputed) {
  BenchOptions options;
  options.sweep = "decode";
  options.contexts = {3073};
  options.batches = {64};
  const int64_t whole = (*plan_groups(options, kLimits))[0].context;
  options.fill_context = 3072;
  const int64_t filled = (*plan_groups(options, kLimits))[0].context;
  EXPECT_LT(filled, whole);
  EXPECT_GE(filled, 3073 + options.decode_tokens);
  EXPECT_FALSE(options.engine_options().prefix_cache);
}

TEST(PlanGroups, HostHasManyShortRequests) {
  BenchOptions options;
  options.host = true;
  const auto groups = *plan_groups(options, kLimits);
  EXPECT_THAT(loads(groups[0]), ElementsAre(1, 64, 512));
  EXPECT_EQ(groups[0].sequences, 512);
  EXPECT_GT(groups[0].chunk, 512);
  EXPECT_LE(groups[0].context, 256);
}

}  // namespace
}  // namespace tidemill::cli
