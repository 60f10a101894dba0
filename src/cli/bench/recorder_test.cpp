#include "cli/bench/recorder.h"

#include <gmock/gmock.h>

namespace tidemill::cli {
namespace {

using testing::ElementsAre;

Event tokens(RequestId id, size_t count) {
  Event event;
  event.id = id;
  event.tokens.resize(count);
  return event;
}

Event end(RequestId id, FinishReason finish, size_t count = 0) {
  Event event = tokens(id, count);
  event.finish = finish;
  event.last = true;
  event.usage.queued_ms = 30;
  return event;
}

// A request that arrived at 1.0 s while the client was busy until 1.2 s.
TEST(RunRecorder, LatenciesStartAtTheArrival) {
  RunRecorder recorder;
  recorder.submitted(7, 3, 1.0, 1.2);
  recorder.take(tokens(7, 1), 1.5);
  recorder.take(tokens(7, 3), 1.6);
  recorder.take(end(7, FinishReason::kLength, 2), 1.9);
  const auto records = recorder.take_records();
  ASSERT_EQ(records.size(), 1u);
  const RequestRecord& record = records[0];
  EXPECT_EQ(record.index, 3u);
  EXPECT_NEAR(record.ttft_ms(), 500, 1e-9);
  EXPECT_NEAR(record.total_ms(), 900, 1e-9);
  EXPECT_NEAR(record.queued_ms(), 230, 1e-9);
  EXPECT_EQ(record.tokens(), 6);
  ASSERT_EQ(record.bursts.size(), 3u);
  EXPECT_EQ(record.bursts[1].at_s, 1.6);
  EXPECT_EQ(record.bursts[1].tokens, 3);
}

TEST(RunRecorder, AnEndWithoutTokensIsNoBurst) {
  RunRecorder recorder;
  recorder.submitted(1, 0, 0, 0);
  recorder.take(tokens(1, 2), 1);
  recorder.take(end(1, FinishReason::kStop), 5);
  const auto records = recorder.take_records();
  EXPECT_EQ(records[0].bursts.size(), 1u);
  EXPECT_EQ(records[0].last_s(), 1);
  EXPECT_EQ(records[0].total_ms(), 5000);
}

TEST(RunRecorder, CountsWhatIsInFlight) {
  RunRecorder recorder;
  recorder.submitted(1, 0, 0, 0);
  recorder.submitted(2, 1, 0, 0);
  recorder.refused(2, 0, 0.1, {ErrorCode::kNoCapacity, "full"});
  recorder.take(tokens(2, 1), 1);
  recorder.take(tokens(99, 1), 1);  // not ours
  EXPECT_EQ(recorder.in_flight(), 2);
  EXPECT_EQ(recorder.ended(), 1);
  EXPECT_EQ(recorder.begun(), 1);
  EXPECT_EQ(recorder.tokens(), 1);
  recorder.take(end(2, FinishReason::kCancelled), 2);
  EXPECT_THAT(recorder.open_ids(), ElementsAre(1u));
  const auto records = recorder.take_records();
  EXPECT_TRUE(records[0].failed());
  EXPECT_EQ(records[0].error, "full");
  EXPECT_FALSE(records[1].failed());
}

TEST(TokensBetween, ExcludesTheBeginningAndIncludesTheEnd) {
  RequestRecord record;
  record.bursts = {{1, 1}, {2, 2}, {3, 4}, {4, 8}};
  const std::vector<RequestRecord> records = {record, RequestRecord{}};
  EXPECT_EQ(tokens_between(records, 0, 10), 15);
  EXPECT_EQ(tokens_between(records, 1, 3), 6);
  EXPECT_EQ(tokens_between(records, 4, 9), 0);
}

TEST(StepWork, IsTheDifferenceOfStats) {
  Stats before, after;
  before.steps = 10;
  before.drafted = {5};
  before.accepted = {2};
  before.decode_rows = 15;
  after.steps = 20;
  after.drafted = {15, 10};
  after.accepted = {8, 3};
  before.predicted = {1.5};
  after.predicted = {6.0, 2.5};
  after.decode_rows = 45;  // 30 more: 20 drafts, 10 requests' own
  after.device_busy_ms = 90;
  after.device_idle_ms = 10;
  after.plan_ms = 6;
  after.commit_ms = 2;
  after.exposed_ms = 2;
  const StepWork work = work_between(before, after);
  EXPECT_EQ(work.steps, 10);
  EXPECT_THAT(work.drafted, ElementsAre(10, 10));
  EXPECT_THAT(work.accepted, ElementsAre(6, 3));
  EXPECT_THAT(work.predicted, ElementsAre(4.5, 2.5));
  EXPECT_EQ(work.request_steps, 10);
  EXPECT_DOUBLE_EQ(work.tokens_per_step(), 1.9);
  EXPECT_DOUBLE_EQ(work.idle_share(), 0.1);
  EXPECT_DOUBLE_EQ(work.hidden_share(), 0.75);
  EXPECT_EQ(StepWork{}.tokens_per_step(), 0);
  EXPECT_EQ(StepWork{}.idle_share(), 0);
  EXPECT_EQ(StepWork{}.hidden_share(), 0);
}

}  // namespace
}  // namespace tidemill::cli
