#include "observe/serve_metrics.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "observe/records_for_tests.h"

namespace tidemill {
namespace {

using testing::HasSubstr;
using testing::Not;

const Clock::time_point kStart{std::chrono::hours(1000)};

ServeMetricsOptions options() {
  return {.model_name = "m",
          .version = "1.2.3",
          .endpoints = {"/v1/chat/completions", "/v1/completions"},
          .now = [] { return kStart; }};
}

// A scrape: the value of each line, and the sum over all lines of a name.
struct Page {
  std::map<std::string, double> lines;
  std::map<std::string, double> sums;
};

Page read_page(const std::string& text) {
  Page page;
  std::set<std::string> typed;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.rfind("# TYPE ", 0) == 0) {
      const std::string name = line.substr(7, line.rfind(' ') - 7);
      EXPECT_TRUE(typed.insert(name).second) << "twice: " << name;
      EXPECT_EQ(line.substr(line.rfind(' ')) == " counter", name.ends_with("_total")) << line;
    }
    if (line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    const std::string series = line.substr(0, space);
    const double value = std::stod(line.substr(space + 1));
    EXPECT_TRUE(page.lines.emplace(series, value).second) << "twice: " << series;
    EXPECT_THAT(series, HasSubstr("{model_name=\"m\""));
    page.sums[series.substr(0, series.find('{'))] += value;
  }
  return page;
}

TEST(ServeMetrics, NumbersAgree) {
  ServeMetrics metrics(options());
  std::mt19937_64 random(7);
  int64_t refused = 0, with_tokens = 0, prompt = 0, cached = 0, output = 0, reasoning = 0;
  constexpr int kRequests = 1000;
  for (int i = 0; i < kRequests; ++i) {
    const RequestRecord record = random_record(random);
    metrics.received(record.endpoint);
    metrics.observe(record);
    refused += record.outcome == "refused";
    with_tokens += record.output_tokens > 0;
    prompt += record.prompt_tokens;
    cached += record.cached_tokens;
    output += record.output_tokens;
    reasoning += record.reasoning_tokens;
  }
  Page page = read_page(metrics.expose({}, {}));
  EXPECT_EQ(page.sums["tidemill:requests_received_total"], kRequests);
  EXPECT_EQ(page.sums["tidemill:requests_finished_total"], kRequests);
  EXPECT_EQ(page.sums["tidemill:http_responses_total"], kRequests);
  EXPECT_EQ(page.sums["vllm:request_success_total"], kRequests - refused);
  EXPECT_EQ(page.sums["tidemill:requests_refused_total"], refused);
  EXPECT_EQ(page.sums["tidemill:requests_in_flight"], 0);
  EXPECT_EQ(page.sums["vllm:time_to_first_token_seconds_count"], with_tokens);
  EXPECT_EQ(page.sums["vllm:e2e_request_latency_seconds_count"], kRequests - refused);
  EXPECT_EQ(page.sums["vllm:prompt_tokens_total"], prompt);
  EXPECT_EQ(page.sums["vllm:prompt_tokens_cached_total"], cached);
  EXPECT_EQ(page.sums["vllm:generation_tokens_total"], output);
  EXPECT_EQ(page.sums["tidemill:reasoning_tokens_total"], reasoning);
  EXPECT_EQ(page.sums["vllm:request_prompt_tokens_sum"], prompt);
  EXPECT_EQ(page.sums["vllm:request_generation_tokens_sum"], output);

  const ServeMetrics::Totals totals = metrics.totals();
  EXPECT_EQ(totals.received, kRequests);
  EXPECT_EQ(totals.in_flight, 0);
  EXPECT_EQ(totals.by_outcome[outcome_index("refused")], refused);
  EXPECT_EQ(totals.prompt_tokens, prompt);
  EXPECT_EQ(totals.output_tokens, output);
}

TEST(ServeMetrics, PhasesOfOneRequest) {
  ServeMetrics metrics(options());
  metrics.received("/v1/chat/completions");
  EXPECT_EQ(metrics.totals().in_flight, 1);
  metrics.observe(sample_record());
  Page page = read_page(metrics.expose({}, {}));
  const std::map<std::string, double> expected = {
      {"vllm:time_to_first_token_seconds_sum", 0.035},
      {"vllm:request_queue_time_seconds_sum", 0.003},
      {"vllm:request_prefill_time_seconds_sum", 0.030},
      {"vllm:request_decode_time_seconds_sum", 0.060},
      {"vllm:e2e_request_latency_seconds_sum", 0.095},
      {"vllm:request_time_per_output_token_seconds_sum", 0.010},
      {"vllm:request_params_max_tokens_sum", 100},
      {"vllm:request_params_n_sum", 1},
      {"tidemill:bytes_sent_total", 812}};
  for (const auto& [name, value] : expected) EXPECT_DOUBLE_EQ(page.sums[name], value) << name;
  EXPECT_EQ(page.lines["vllm:request_success_total{model_name=\"m\",finished_reason=\"stop\"}"], 1);
  EXPECT_EQ(page.lines["tidemill:http_responses_total{model_name=\"m\",endpoint=\"/v1/chat/"
                       "completions\",status=\"200\"}"],
            1);
}

TEST(ServeMetrics, InterTokenLatencyIsPerToken) {
  ServeMetrics metrics(options());
  metrics.first_tokens(1, 50);
  metrics.inter_token(0.04, 4);
  metrics.inter_token(0.03, 1);
  metrics.inter_token(0.5, 0);
  metrics.inter_token(0.5, -1);
  Page page = read_page(metrics.expose({}, {}));
  EXPECT_EQ(page.sums["vllm:inter_token_latency_seconds_count"], 5);
  EXPECT_DOUBLE_EQ(page.sums["vllm:inter_token_latency_seconds_sum"], 0.07);
  EXPECT_EQ(page.lines["vllm:inter_token_latency_seconds_bucket{model_name=\"m\",le=\"0.01\"}"], 4);
  const auto later = kStart + std::chrono::seconds(1);
  EXPECT_EQ(metrics.recent().rates(later).output_tokens, 6);
  EXPECT_EQ(metrics.recent().rates(later).prompt_tokens, 50);
}

TEST(ServeMetrics, CallsAreAStopForVllm) {
  ServeMetrics metrics(options());
  RequestRecord record = sample_record();
  for (const char* outcome : {"tool_calls", "stop", "length", "abort", "error", "what"}) {
    record.outcome = outcome;
    metrics.observe(record);
  }
  Page page = read_page(metrics.expose({}, {}));
  const auto success = [&](const std::string& reason) {
    return page
        .lines["vllm:request_success_total{model_name=\"m\",finished_reason=\"" + reason + "\"}"];
  };
  EXPECT_EQ(success("stop"), 2);
  EXPECT_EQ(success("length"), 1);
  EXPECT_EQ(success("abort"), 1);
  EXPECT_EQ(success("error"), 1);
  EXPECT_EQ(page.sums["tidemill:requests_finished_total"], 6);
}

TEST(ServeMetrics, ReasonsOfEachOutcome) {
  ServeMetrics metrics(options());
  RequestRecord record = sample_record();
  for (const char* reason : {"", "rate", "a reason too long for a string's own buffer"}) {
    record.reason = reason;
    for (const char* outcome : {"abort", "error", "refused", "stop"}) {
      record.outcome = outcome;
      metrics.observe(record);
    }
  }
  metrics.refused("head");
  const Page page = read_page(metrics.expose({}, {}));
  std::string counts;
  for (const auto& [series, value] : page.lines) {
    if (series.find("reason=") == std::string::npos || value == 0) continue;
    if (series.find("finished_reason") != std::string::npos) continue;
    counts += fmt::format("{}={} ", series.substr(series.find(':') + 1), value);
  }
  std::string expected;
  for (const char* name :
       {"requests_aborted_total", "requests_failed_total", "requests_refused_total"}) {
    for (const char* reason : {"a reason too long for a string's own buffer", "other", "rate"}) {
      expected += fmt::format("{}{{model_name=\"m\",reason=\"{}\"}}=1 ", name, reason);
    }
  }
  EXPECT_EQ(counts, "http_refused_total{model_name=\"m\",reason=\"head\"}=1 " + expected);
}

TEST(ServeMetrics, PathsOfClientsDoNotGrowIt) {
  ServeMetrics metrics(options());
  RequestRecord record = sample_record();
  const size_t before = metrics.expose({}, {}).size();
  for (int i = 0; i < 1000; ++i) {
    record.endpoint = fmt::format("/{}\n\"", i);
    record.status = 404;
    metrics.received(record.endpoint);
    metrics.observe(record);
    metrics.refused(fmt::format("reason {}", i));
  }
  const std::string text = metrics.expose({}, {});
  EXPECT_LT(text.size(), before + 8192);
  EXPECT_THAT(text, HasSubstr("requests_received_total{model_name=\"m\",endpoint=\"other\"} 1000"));
  EXPECT_EQ(metrics.totals().received, 1000);
  EXPECT_EQ(metrics.totals().refused_early, 1000);
}

TEST(ServeMetrics, EngineAndServerAreWritten) {
  Stats stats;
  stats.running = 3;
  stats.waiting = 2;
  stats.pool_blocks = 200;
  stats.free_blocks = 150;
  stats.cache_asked_tokens = 1000;
  stats.cache_hit_tokens = 400;
  stats.cache_misses = {{"evicted", 4}, {"salt", 1}};
  stats.drafted = {10, 6};
  stats.accepted = {9, 3};
  stats.device_idle_ms = 1500;
  stats.suspends = 5;
  ServerGauges server;
  server.connections = 17;
  server.draining = true;
  server.ledger_errors = 2;
  ServeMetrics metrics(options());
  Page page = read_page(metrics.expose(stats, server));
  const std::map<std::string, double> expected = {
      {"vllm:num_requests_running{model_name=\"m\"}", 3},
      {"vllm:num_requests_waiting{model_name=\"m\"}", 2},
      {"vllm:kv_cache_usage_perc{model_name=\"m\"}", 0.25},
      {"tidemill:pool_blocks_used{model_name=\"m\"}", 50},
      {"vllm:prefix_cache_queries_total{model_name=\"m\"}", 1000},
      {"vllm:prefix_cache_hits_total{model_name=\"m\"}", 400},
      {"tidemill:prefix_cache_misses_total{model_name=\"m\",reason=\"evicted\"}", 4},
      {"vllm:spec_decode_num_drafts_total{model_name=\"m\"}", 10},
      {"vllm:spec_decode_num_draft_tokens_total{model_name=\"m\"}", 16},
      {"vllm:spec_decode_num_accepted_tokens_total{model_name=\"m\"}", 12},
      {"vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"m\",position=\"1\"}", 3},
      {"tidemill:device_idle_seconds_total{model_name=\"m\"}", 1.5},
      {"tidemill:preemptions_to_host_total{model_name=\"m\"}", 5},
      {"tidemill:connections{model_name=\"m\"}", 17},
      {"tidemill:draining{model_name=\"m\"}", 1},
      {"tidemill:ledger_errors_total{model_name=\"m\"}", 2},
      {"tidemill:build_info{model_name=\"m\",version=\"1.2.3\"}", 1}};
  for (const auto& [series, value] : expected) {
    ASSERT_TRUE(page.lines.count(series)) << series;
    EXPECT_DOUBLE_EQ(page.lines[series], value) << series;
  }
}

TEST(ServeMetrics, NothingYetIsZeroAndNoNaN) {
  ServeMetrics metrics(options());
  const std::string text = metrics.expose({}, {});
  EXPECT_THAT(text, Not(HasSubstr("NaN")));
  EXPECT_THAT(text, Not(HasSubstr("nan")));
  EXPECT_EQ(metrics.time_to_first_token().count, 0);
  EXPECT_EQ(metrics.end_to_end().p99, 0);
  EXPECT_THAT(text, HasSubstr("vllm:request_success_total{model_name=\"m\",finished_reason="
                              "\"length\"} 0\n"));
}

TEST(ServeMetrics, PercentilesFitTheRange) {
  ServeMetrics metrics(options());
  RequestRecord record = sample_record();
  for (const double ms : {1.5, 60.0, 550'000.0}) {
    record.first_token_ms = ms;
    record.ended_ms = 3'500'000;
    metrics.observe(record);
  }
  EXPECT_EQ(metrics.time_to_first_token().count, 3);
  EXPECT_NEAR(metrics.time_to_first_token().p50, 0.075, 0.026);
  EXPECT_NEAR(metrics.time_to_first_token().p99, 550, 50);
  EXPECT_NEAR(metrics.end_to_end().p50, 3000, 1000);
}

TEST(ServeMetrics, FromManyThreads) {
  ServeMetrics metrics(options());
  constexpr int kThreads = 4;
  constexpr int kRounds = 500;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      for (int i = 0; i < kRounds; ++i) {
        const RequestRecord record = random_record(random);
        metrics.received(record.endpoint);
        metrics.inter_token(0.01, 2);
        metrics.observe(record);
        if (i % 100 == 0) metrics.expose({}, {});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const ServeMetrics::Totals totals = metrics.totals();
  EXPECT_EQ(totals.received, kThreads * kRounds);
  int64_t finished = 0;
  for (const int64_t n : totals.by_outcome) finished += n;
  EXPECT_EQ(finished, kThreads * kRounds);
  EXPECT_EQ(metrics.inter_token_latency().count, 2 * kThreads * kRounds);
}

}  // namespace
}  // namespace tidemill
