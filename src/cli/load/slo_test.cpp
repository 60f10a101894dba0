#include "cli/load/slo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemill::cli {
namespace {

using testing::HasSubstr;

TEST(ParseSlo, ReadsEveryLimitAndUnit) {
  const auto slo = parse_slo("ttft=500ms,itl=0.05s,tpot=1500us,stall=2s,e2e=10s");
  ASSERT_TRUE(slo);
  EXPECT_DOUBLE_EQ(*slo->ttft_ms, 500);
  EXPECT_DOUBLE_EQ(*slo->itl_ms, 50);
  EXPECT_DOUBLE_EQ(*slo->tpot_ms, 1.5);
  EXPECT_DOUBLE_EQ(*slo->stall_ms, 2000);
  EXPECT_DOUBLE_EQ(*slo->e2e_ms, 10000);
  EXPECT_EQ(slo->text(), "ttft=500ms,itl=50ms,tpot=1.5ms,stall=2000ms,e2e=10000ms");
}

TEST(ParseSlo, ReadsBackItsOwnText) {
  const auto slo = parse_slo("e2e=3s,ttft=20ms");
  ASSERT_TRUE(slo);
  EXPECT_FALSE(slo->itl_ms);
  const auto again = parse_slo(slo->text());
  ASSERT_TRUE(again);
  EXPECT_EQ(again->text(), slo->text());
}

TEST(ParseSlo, NamesWhatIsWrong) {
  const std::pair<const char*, const char*> wrong[] = {
      {"", "\"\""},
      {"ttft", "ttft=500ms"},
      {"ttft=", "unit"},
      {"ttft=5", "unit"},
      {"ttft=ms", "unit"},
      {"ttft=0ms", "above 0"},
      {"ttft=-1ms", "above 0"},
      {"ttft=nans", "above 0"},
      {"ttft=infs", "above 0"},
      {"ttft=1e3ms", "unit"},
      {"ttft=5 ms", "unit"},
      {"ttft=5min", "unit"},
      {"ttft=5ms,", "\"\""},
      {",ttft=5ms", "\"\""},
      {"ttft=5ms,,e2e=1s", "\"\""},
      {"ttft=5ms,ttft=6ms", "twice"},
      {"TTFT=5ms", "TTFT"},
      {"latency=5ms", "latency"},
  };
  for (const auto& [text, says] : wrong) {
    const auto slo = parse_slo(text);
    ASSERT_FALSE(slo) << text;
    EXPECT_EQ(slo.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(slo.error().message, HasSubstr("--slo"));
    EXPECT_THAT(slo.error().message, HasSubstr(says)) << text;
  }
}

// TTFT 100 ms; gaps 10, 30 and 20 ms, mean 20; 6 tokens in the 60 ms after the first: 12 each.
LoadRecord answer() {
  LoadRecord record{.intended_s = 1.0, .sent_s = 1.01, .end_s = 1.2, .outcome = LoadOutcome::kOk};
  record.chunks_s = {1.1, 1.11, 1.14, 1.16};
  record.has_usage = true;
  record.completion_tokens = 6;
  return record;
}

bool meets(const char* slo, const LoadRecord& record) { return parse_slo(slo)->is_met_by(record); }

TEST(Slo, BoundsEachLatency) {
  const LoadRecord record = answer();
  for (const char* text : {"ttft=101ms", "itl=20.1ms", "tpot=12.1ms", "stall=31ms", "e2e=201ms"}) {
    EXPECT_TRUE(meets(text, record)) << text;
  }
  for (const char* text : {"ttft=99ms", "itl=19.9ms", "tpot=11.9ms", "stall=29ms", "e2e=199ms"}) {
    EXPECT_FALSE(meets(text, record)) << text;
  }
  EXPECT_TRUE(meets("ttft=101ms,e2e=201ms", record));
  EXPECT_FALSE(meets("ttft=101ms,e2e=199ms", record));
}

TEST(Slo, OnlyWhatEndedWellIsGood) {
  LoadRecord record = answer();
  record.outcome = LoadOutcome::kError;
  EXPECT_FALSE(meets("ttft=10s", record));
  EXPECT_FALSE(Slo{}.is_met_by(record));
  record.outcome = LoadOutcome::kAborted;
  EXPECT_FALSE(meets("ttft=10s", record));
}

TEST(Slo, AnAnswerWithoutContentHasNoFirstToken) {
  LoadRecord record = answer();
  record.chunks_s.clear();
  EXPECT_FALSE(meets("ttft=10s", record));
  EXPECT_TRUE(meets("itl=1ms,tpot=1ms,stall=1ms,e2e=201ms", record));
}

}  // namespace
}  // namespace tidemill::cli
