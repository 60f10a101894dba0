#include "cli/bench/report.h"

#include <gmock/gmock.h>

#include "cli/bench/table.h"

namespace tidemill::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

MeasuredCell cell(std::string drafts, int64_t concurrency, double rate, double user) {
  MeasuredCell made{.shape = {.drafts = std::move(drafts), .concurrency = concurrency},
                    .summary = {},
                    .floor_ms = {}};
  made.summary.tokens_per_second = spread({rate});
  made.summary.user_tokens_per_second = percentiles({user});
  return made;
}

TEST(TextTable, AlignsItsColumns) {
  TextTable table({"name", "n"});
  EXPECT_TRUE(table.empty());
  table.add({"a", "1000"});
  table.add({"bcdef", "1"});
  EXPECT_EQ(table.text(), "name      n\na      1000\nbcdef     1\n");
}

TEST(CellTables, CompareDraftModesAndMarkTheBest) {
  const std::vector<MeasuredCell> cells = {cell("off", 1, 50, 50), cell("off", 4, 120, 30),
                                           cell("dynamic", 1, 80, 80), cell("dynamic", 4, 110, 25)};
  const std::string text = cell_tables(cells);
  EXPECT_THAT(text, HasSubstr("1                    50.0    *80.0"));
  EXPECT_THAT(text, HasSubstr("4                    *120      110"));
  EXPECT_THAT(cell_tables(std::span(cells).first(2)), Not(HasSubstr("tokens/s, in flight")));
  EXPECT_EQ(cell_tables({}), "");
}

TEST(CellJson, ShortRunsHaveNullForWhatTheyLack) {
  MeasuredCell measured = cell("off", 2, 10, 5);
  measured.shape.kind = CellKind::kDecode;
  measured.summary.tokens_per_second = {};
  measured.floor_ms = 2;
  const Json json = cell_json(measured, 3);
  EXPECT_EQ(json["record"], "cell");
  EXPECT_EQ(json["cell"], 3);
  EXPECT_TRUE(json["tokens_per_second"].is_null());
  EXPECT_TRUE(json["ttft_ms"].is_null());
  EXPECT_EQ(json["of_floor"], 0);
}

TEST(RequestJson, GapsAreASummaryOrAllOfThem) {
  RequestRecord record;
  record.bursts = {{1, 1}, {1.5, 2}, {2.5, 1}};
  Json json = request_json(record, {.concurrency = 2}, 0, 1, false);
  EXPECT_EQ(json["burst_ms"]["count"], 2);
  EXPECT_EQ(json["ttft_ms"], 1000);
  EXPECT_EQ(json["concurrency"], 2);
  EXPECT_FALSE(json.contains("error"));
  json = request_json(record, {.rate = 3}, 0, 1, true);
  EXPECT_EQ(json["burst_ms"].dump(), "[[500.0,2],[1000.0,1]]");
  EXPECT_EQ(json["rate"], 3);
  record = {};
  record.finish = FinishReason::kRefused;
  record.error = "full";
  json = request_json(record, {}, 0, 0, false);
  EXPECT_TRUE(json["ttft_ms"].is_null());
  EXPECT_EQ(json["error"], "full");
}

TEST(Floor, CountsTheRowsOfDrafts) {
  const Floor floor{.traffic = {.once_bytes = 100, .row_bytes = 10}, .bytes_per_second = 1000};
  CellSummary summary;
  EXPECT_DOUBLE_EQ(floor.step_ms(summary, 2), 120);
  summary.work.request_steps = 4;
  summary.work.drafted = {4, 2};
  EXPECT_DOUBLE_EQ(floor.step_ms(summary, 2), 150);  // 2 x (1 + 1.5) rows
}

TEST(Floor, OfAPromptIsItsArithmetic) {
  const Floor floor{.prefill = {.token_flops = 20, .prompt_flops = 500},
                    .flops_per_second = 10'000};
  EXPECT_DOUBLE_EQ(floor.prompt_ms(100), 250);
  MeasuredCell measured = cell("off", 3, 200, 5);  // tokens/s, at best 400
  measured.shape.kind = CellKind::kPrefill;
  measured.shape.prompt_tokens = 100;
  EXPECT_EQ(measured.of_floor(), 0);
  measured.floor_ms = floor.prompt_ms(100);
  EXPECT_DOUBLE_EQ(measured.of_floor(), 0.5);
  EXPECT_THAT(cell_tables({&measured, 1}), HasSubstr("50.0 %"));
  EXPECT_DOUBLE_EQ(cell_json(measured, 0)["of_floor"], 0.5);
}

TEST(ParetoPoints, LeaveOutWhatHasNoPlace) {
  std::vector<MeasuredCell> cells = {cell("off", 1, 50, 50), cell("off", 0, 70, 20),
                                     cell("off", 4, 90, 25)};
  cells[2].summary.tokens_per_second = {};
  auto points = pareto_points(cells);
  ASSERT_EQ(points.size(), 1u);
  EXPECT_EQ(points[0].label, "1");
  EXPECT_EQ(points[0].series, "off");
  for (MeasuredCell& one : cells) one.shape.kind = CellKind::kDecode;
  cells[0].shape.prompt_tokens = 128;
  cells[1].shape = {.kind = CellKind::kDecode, .concurrency = 2, .prompt_tokens = 512};
  points = pareto_points(cells);
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[1].series, "off, 512");
}

TEST(DraftTables, HaveARowForEachConcurrency) {
  const DraftComparison comparison{.policies = {"fixed:5", "dynamic"}, .concurrencies = {1, 60}};
  const DraftReport report{.results = {{1, 0, {100, 1, 5, 10}},
                                       {1, 1, {100, 1, 5, 10}},
                                       {60, 0, {500, 1, 5, 10}},
                                       {60, 1, {550, 1, 4, 9}}},
                           .verdicts = {{1, "dynamic", "fixed:5", 0.9999, 0.9999},
                                        {60, "dynamic", "fixed:5", 1.1, 1.1}}};
  const std::string text = draft_tables(report, comparison);
  EXPECT_THAT(text, HasSubstr("fixed:5   +0.0 %"));
  EXPECT_THAT(text, HasSubstr("fixed:5  +10.0 %"));
  EXPECT_EQ(draft_json(report, comparison)["dynamic"][1]["over_fixed_5"], 1.1);
  EXPECT_EQ(draft_tables({}, comparison).substr(0, 8), "tokens/s");
}

}  // namespace
}  // namespace tidemill::cli
