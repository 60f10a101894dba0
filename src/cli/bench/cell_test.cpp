#include "cli/bench/cell.h"

#include <gmock/gmock.h>

namespace tidemill::cli {
namespace {

// Arrived at 0, 10 computed prompt tokens, bursts as given.
RequestRecord record(std::vector<TokenBurst> bursts, FinishReason finish = FinishReason::kLength) {
  RequestRecord made;
  made.bursts = std::move(bursts);
  made.end_s = made.bursts.empty() ? 0 : made.bursts.back().at_s;
  made.finish = finish;
  made.usage.prompt_tokens = 12;
  made.usage.cached_tokens = 2;
  return made;
}

Cell cell_of(CellKind kind) {
  Cell cell;
  cell.shape.kind = kind;
  cell.shape.concurrency = 2;
  return cell;
}

RunResult& add_run(Cell& cell, std::vector<RequestRecord> records) {
  cell.runs.emplace_back().records = std::move(records);
  return cell.runs.back();
}

TEST(Summarise, AWorkloadCountsItsAnswersOverTheWholeRun) {
  Cell cell = cell_of(CellKind::kWorkload);
  add_run(cell, {record({{1, 1}, {1.1, 2}, {2, 1}}), record({{1, 1}, {4, 3}})});
  add_run(cell, {record({{1, 1}, {2, 1}})});
  const CellSummary summary = summarise(cell);
  EXPECT_EQ(summary.requests, 3);
  EXPECT_EQ(summary.output_tokens, 10);
  EXPECT_EQ(summary.tokens_per_second.count, 2);
  EXPECT_DOUBLE_EQ(summary.tokens_per_second.most, 2);  // 8 tokens in 4 s
  EXPECT_DOUBLE_EQ(summary.tokens_per_second.least, 1);
  EXPECT_EQ(summary.steady_tokens_per_second.count, 0);
  EXPECT_EQ(summary.ttft_ms.count, 3);
  EXPECT_NEAR(summary.total_ms.most, 4000, 1e-9);
  // A burst of three tokens is three samples of a third of its time.
  EXPECT_EQ(summary.burst_ms.count, 4);
  EXPECT_EQ(summary.token_ms.count, 7);
  EXPECT_NEAR(summary.burst_ms.most, 3000, 1e-9);
  EXPECT_NEAR(summary.token_ms.most, 1000, 1e-9);
  EXPECT_NEAR(summary.user_tokens_per_second.most, 3, 1e-9);
}

TEST(Summarise, PrefillCountsComputedPromptTokens) {
  Cell cell = cell_of(CellKind::kPrefill);
  add_run(cell, {record({{1, 1}}), record({{2, 1}, {9, 1}})});
  EXPECT_DOUBLE_EQ(summarise(cell).tokens_per_second.median, 10);  // 2 x 10 in 2 s
}

TEST(Summarise, DecodeSeesTheSteadyPartOnly) {
  Cell cell = cell_of(CellKind::kDecode);
  RunResult& one =
      add_run(cell, {record({{1, 1}, {5, 1}, {6, 2}, {7, 2}, {20, 1}}, FinishReason::kCancelled)});
  one.work.steps = 100;
  one.steady = SteadyPart{.begin_s = 5, .end_s = 7, .tokens = 4, .work = {.steps = 2}};
  add_run(cell, {});
  const CellSummary summary = summarise(cell);
  EXPECT_EQ(summary.tokens_per_second.count, 1);  // the second run had no steady part
  EXPECT_DOUBLE_EQ(summary.tokens_per_second.median, 2);
  EXPECT_EQ(summary.work.steps, 2);
  EXPECT_DOUBLE_EQ(summary.step_ms(), 1000);
  EXPECT_EQ(summary.burst_ms.count, 2);
  EXPECT_EQ(summary.cancelled, 1);
  EXPECT_EQ(summary.total_ms.count, 0);  // it did not come to its end
}

TEST(Summarise, FailuresHaveNoLatencies) {
  RequestRecord refused = record({}, FinishReason::kRefused);
  refused.error = "full";
  Cell cell = cell_of(CellKind::kWorkload);
  add_run(cell, {refused, record({{1, 1}})});
  const CellSummary summary = summarise(cell);
  EXPECT_EQ(summary.failed, 1);
  EXPECT_EQ(summary.first_error, "full");
  EXPECT_EQ(summary.ttft_ms.count, 1);
  EXPECT_EQ(summarise({}).requests, 0);
}

TEST(DecodeOutputTokens, LastUntilTheLastPromptIsReady) {
  // 4 x 1000 prompt tokens at (500 - 4) a step: 9 steps and a token of each in every one.
  EXPECT_GE(decode_output_tokens(4, 1000, 32, 500, 0), 32 + 9);
  EXPECT_GE(decode_output_tokens(4, 1000, 32, 500, 5), 32 + 9 * 6);
  EXPECT_GT(decode_output_tokens(512, 16, 1, 512, 0), 1);
}

}  // namespace
}  // namespace tidemill::cli
