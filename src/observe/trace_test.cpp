#include "observe/trace.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include <nlohmann/json.hpp>

#include "observe/access_line.h"
#include "observe/records_for_tests.h"
#include "observe/utf8_lossy.h"

namespace tidemill {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string phases_text(const RequestRecord& record) {
  std::string text;
  for (const RequestPhase& phase : request_phases(record)) {
    text += fmt::format("{} {:.0f}-{:.0f} ", phase.name, phase.begin_ms, phase.end_ms);
  }
  return text;
}

TEST(Trace, PhasesFillTheTime) {
  RequestRecord record = sample_record();
  EXPECT_EQ(phases_text(record), "prepare 0-2 queue 2-5 prefill 5-35 decode 35-95 ");
  record.first_token_ms = -1;
  EXPECT_EQ(phases_text(record), "prepare 0-2 queue 2-5 prefill 5-95 ");
  record.started_ms = -1;
  EXPECT_EQ(phases_text(record), "prepare 0-2 queue 2-95 ");
  record.prepared_ms = -1;
  EXPECT_EQ(phases_text(record), "prepare 0-95 ");
  record.ended_ms = -1;
  EXPECT_EQ(phases_text(record), "prepare 0-0 ");
}

TEST(Trace, PhasesStayInOrder) {
  RequestRecord record = sample_record();
  record.prepared_ms = 9;  // a clock read late
  record.first_token_ms = 200;
  EXPECT_EQ(phases_text(record), "prepare 0-9 queue 9-9 prefill 9-95 decode 95-95 ");
}

TEST(Trace, KeepsTheLatest) {
  RequestTrace trace(3);
  RequestRecord record = sample_record();
  for (int i = 0; i < 10; ++i) {
    record.id = fmt::format("r{}", i);
    trace.add(record);
  }
  const auto recent = trace.recent(2);
  ASSERT_EQ(recent.size(), 2u);
  EXPECT_EQ(recent[0].id, "r9");
  EXPECT_EQ(recent[1].id, "r8");
  EXPECT_EQ(trace.recent(100).size(), 3u);
  EXPECT_EQ(trace.recent(0).size(), 0u);
  EXPECT_EQ(RequestTrace(0).recent(9).size(), 0u);
}

TEST(Trace, ChromeJson) {
  RequestTrace trace;
  RequestRecord record = sample_record();
  trace.add(record);
  record.id = "second \xff\"";
  record.arrived_unix_s -= 1.5;  // arrived before, ended after
  trace.add(record);
  const json root = json::parse(trace.chrome_json());
  const json& events = root.at("traceEvents");
  ASSERT_EQ(events.size(), 12u);  // a name, the whole and four phases, twice
  EXPECT_EQ(events[0].at("ph"), "M");
  EXPECT_EQ(events[0].at("args").at("name"), "chatcmpl-1");
  EXPECT_EQ(events[1].at("name"), "/v1/chat/completions");
  EXPECT_EQ(events[1].at("ts"), 1.5e6);
  EXPECT_EQ(events[1].at("dur"), 95e3);
  EXPECT_EQ(events[1].at("args").at("prompt_tokens"), 12);
  EXPECT_EQ(events[1].at("args").at("accepted"), 5);
  EXPECT_EQ(events[4].at("name"), "prefill");
  EXPECT_EQ(events[4].at("ts"), 1.5e6 + 5e3);
  EXPECT_EQ(events[4].at("dur"), 30e3);
  EXPECT_EQ(events[6].at("args").at("name"), "second \xEF\xBF\xBD\"");
  EXPECT_EQ(events[7].at("ts"), 0);
  EXPECT_NE(events[1].at("tid"), events[7].at("tid"));
  for (const json& event : events) {
    EXPECT_TRUE(event.at("ph") == "M" || event.at("dur") >= 0) << event;
  }
}

TEST(Trace, EmptyIsATrace) {
  EXPECT_EQ(json::parse(chrome_trace({})).at("traceEvents").size(), 0u);
  EXPECT_EQ(json::parse(otlp_spans({}, "s"))["resourceSpans"][0]["scopeSpans"][0]["spans"].size(),
            0u);
}

std::string value_of(const json& span, const std::string& key) {
  for (const json& attribute : span.at("attributes")) {
    if (attribute.at("key") == key) return attribute.at("value").dump();
  }
  return "";
}

TEST(Trace, OtlpSpans) {
  std::vector<RequestRecord> records(2, sample_record());
  records[1].id = "x";
  records[1].outcome = "error";
  records[1].reason = "internal";
  records[1].status = 500;
  const json root = json::parse(otlp_spans(records, "tide\"mill"));
  const json& resource = root.at("resourceSpans").at(0);
  EXPECT_EQ(resource["resource"]["attributes"][0]["key"], "service.name");
  EXPECT_EQ(resource["resource"]["attributes"][0]["value"]["stringValue"], "tide\"mill");
  const json& spans = resource.at("scopeSpans").at(0).at("spans");
  ASSERT_EQ(spans.size(), 10u);
  const json& first = spans[0];
  EXPECT_EQ(first.at("name"), "/v1/chat/completions");
  EXPECT_EQ(first.at("kind"), 2);
  EXPECT_FALSE(first.contains("parentSpanId"));
  EXPECT_FALSE(first.contains("status"));
  EXPECT_EQ(first.at("startTimeUnixNano"), "1700000000250000000");
  EXPECT_EQ(first.at("endTimeUnixNano"), "1700000000345000000");
  EXPECT_EQ(value_of(first, "gen_ai.usage.input_tokens"), R"({"intValue":"12"})");
  EXPECT_EQ(value_of(first, "http.response.status_code"), R"({"intValue":"200"})");
  EXPECT_EQ(value_of(first, "gen_ai.response.finish_reasons"),
            R"({"arrayValue":{"values":[{"stringValue":"stop"}]}})");
  EXPECT_EQ(spans[3].at("name"), "prefill");
  EXPECT_EQ(spans[3].at("startTimeUnixNano"), "1700000000255000000");
  EXPECT_EQ(spans[5].at("status").at("code"), 2);

  std::set<std::string> ids;
  for (size_t i = 0; i < spans.size(); ++i) {
    const json& root_span = spans[i < 5 ? 0 : 5];
    EXPECT_EQ(spans[i].at("traceId"), root_span.at("traceId"));
    EXPECT_EQ(spans[i].value("parentSpanId", ""), i % 5 == 0 ? "" : root_span.at("spanId"));
    EXPECT_EQ(spans[i].at("traceId").get<std::string>().size(), 32u);
    EXPECT_EQ(spans[i].at("spanId").get<std::string>().size(), 16u);
    ids.insert(spans[i].at("spanId").get<std::string>());
  }
  EXPECT_EQ(ids.size(), spans.size());
  EXPECT_NE(spans[0].at("traceId"), spans[5].at("traceId"));
}

TEST(Trace, FromManyThreads) {
  RequestTrace trace(50);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        trace.add(sample_record());
        if (i % 50 == 0) trace.chrome_json();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(trace.recent(1000).size(), 50u);
}

TEST(AccessLine, OfAnAnswer) {
  EXPECT_EQ(access_line(sample_record()),
            "request id=chatcmpl-1 client=alice endpoint=/v1/chat/completions model=m stream=true "
            "status=200 outcome=stop choices=1 prompt=12 cached=4 output=7 reasoning=3 "
            "preemptions=1 queue_ms=3.0 ttft_ms=35.0 total_ms=95.0 bytes=812");
}

TEST(AccessLine, LeavesOutWhatDidNotHappen) {
  EXPECT_EQ(access_line({.id = "x",
                         .client = "anonymous",
                         .endpoint = "/v1/models",
                         .status = 429,
                         .outcome = "refused",
                         .reason = "rate",
                         .ended_ms = 1,
                         .bytes_sent = 9}),
            "request id=x client=anonymous endpoint=/v1/models status=429 outcome=refused "
            "reason=rate total_ms=1.0 bytes=9");
}

TEST(AccessLine, HostileTextStaysInItsPlace) {
  RequestRecord record = sample_record();
  record.model = "a b=\"c\\\n\r\x1b[31m status=200\x7f";
  const std::string line = access_line(record);
  EXPECT_THAT(line, HasSubstr(R"( model="a b=\"c\\\n\r\x1b[31m status=200\x7f" stream=)"));
  EXPECT_EQ(line.find('\n'), std::string::npos);
  for (const auto& [model, written] : std::vector<std::pair<std::string, std::string>>{
           {"a b", "\"a b\""}, {"a\tb", "\"a\\tb\""}, {"\x7f", "\"\\x7f\""}, {"a/b:c", "a/b:c"}}) {
    record.model = model;
    EXPECT_THAT(access_line(record), HasSubstr(" model=" + written + " stream="));
  }
}

TEST(Utf8Lossy, KeepsCharactersAndReplacesBytes) {
  const std::string kBad = "\xEF\xBF\xBD";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", ""},
      {"a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x8C\x8A", "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x8C\x8A"},
      {"\x80z", kBad + "z"},
      {"\xC3", kBad},
      {"\xC0\x80", kBad + kBad},                        // overlong
      {"\xE0\x80\x80", kBad + kBad + kBad},             // overlong
      {"\xED\xA0\x80", kBad + kBad + kBad},             // surrogate
      {"\xF0\x80\x80\x80", kBad + kBad + kBad + kBad},  // overlong
      {"\xF4\x90\x80\x80", kBad + kBad + kBad + kBad},  // beyond U+10FFFF
      {"\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"},
      {"\xE2\x82", kBad + kBad},
      {"\xFFq", kBad + "q"}};
  for (const auto& [bytes, text] : cases) EXPECT_EQ(utf8_lossy(bytes), text);
}

}  // namespace
}  // namespace tidemill
