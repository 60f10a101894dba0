// The metrics of a server. Names are vLLM's where it has them, with its meaning; all others begin
// with "tidemill:". Every sample has the label model_name.
//
// What clients are told (usage) and what is counted here come from the same RequestRecord, so that
// they agree. Once nothing is in flight:
//   sum of tidemill:requests_finished_total over outcomes   = sum of received() calls
//   sum of vllm:request_success_total + outcomes refused and other = the same
//   count of vllm:time_to_first_token_seconds               = records with output tokens
//   vllm:prompt_tokens_total, vllm:generation_tokens_total  = sums over the records
// The engine's own counters (Stats) are written beside them: they count choices and computed work.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "observe/metrics.h"
#include "observe/outcomes.h"
#include "observe/recent_window.h"
#include "observe/request_record.h"
#include "tidemill/engine.h"

namespace tidemill {

// State of the server at the time of a scrape.
struct ServerGauges {
  int64_t connections = 0;          // open sockets
  int64_t streams = 0;              // SSE answers that have begun and not ended
  int64_t waiting_preparation = 0;  // requests between the end of their body and Engine::submit
  int64_t body_bytes = 0;           // of bodies that are being received or prepared
  int64_t clients = 0;              // keys known
  int64_t idempotency_entries = 0;
  int64_t idempotency_bytes = 0;
  int64_t ledger_errors = 0;  // counter: UsageLedger::write_errors()
  bool draining = false;
};

struct ServeMetricsOptions {
  std::string model_name;  // as clients call it
  std::string version;     // of this program
  // The paths that are served. All others count as "other": clients choose them.
  std::vector<std::string> endpoints;
  std::function<Clock::time_point()> now = Clock::now;
};

// All methods may be called from any thread; none blocks for long.
class ServeMetrics {
 public:
  explicit ServeMetrics(ServeMetricsOptions options);

  // A request that will have a record has arrived (its head was read). Exactly one observe() of
  // the same endpoint follows, however it ends.
  void received(std::string_view endpoint);
  void observe(const RequestRecord& record);

  // The first tokens of a choice. `prompt_tokens`: of its request, with the first choice only.
  // Feeds recent(); totals come from the records.
  void first_tokens(int64_t tokens, int64_t prompt_tokens);
  // Every later event of a choice that holds tokens: `seconds` since the one before it. Counts
  // seconds / tokens, `tokens` times, as inter-token latency: so its sum is the time after the
  // first tokens, and its count the number of tokens that came in it. tokens < 1: nothing.
  void inter_token(double seconds, int64_t tokens);

  // A request that gets no record: the server turned it away before a handler saw it (its form,
  // its size, too many connections). Not received() either.
  void refused(std::string_view reason);

  // The page for Prometheus; its type is kPrometheusContentType.
  std::string expose(const Stats& engine, const ServerGauges& server) const;

  // ---- for the status page
  struct Percentiles {  // seconds; 0 when nothing was observed
    int64_t count = 0;
    double p50 = 0;
    double p90 = 0;
    double p99 = 0;
  };
  Percentiles time_to_first_token() const;
  Percentiles inter_token_latency() const;
  Percentiles end_to_end() const;
  Percentiles queue_time() const;

  struct Totals {
    int64_t received = 0;
    int64_t in_flight = 0;  // received and not observed
    std::array<int64_t, kOutcomes.size()> by_outcome{};
    int64_t prompt_tokens = 0;
    int64_t cached_tokens = 0;
    int64_t output_tokens = 0;
    int64_t reasoning_tokens = 0;
    int64_t bytes_sent = 0;
    int64_t refused_early = 0;  // by refused()
  };
  Totals totals() const;

  RecentWindow& recent() { return recent_; }

 private:
  std::string_view known_endpoint(std::string_view endpoint) const;

  const ServeMetricsOptions options_;
  const double start_unix_s_;
  RecentWindow recent_;
  MetricsRegistry registry_;

  CounterFamily& received_;
  CounterFamily& finished_;
  CounterFamily& success_;
  CounterFamily& aborts_;
  CounterFamily& errors_;
  CounterFamily& refusals_;
  CounterFamily& responses_;
  CounterFamily& early_;
  Gauge& in_flight_;
  Counter& prompt_tokens_;
  Counter& cached_tokens_;
  Counter& output_tokens_;
  Counter& reasoning_tokens_;
  Counter& unkept_calls_;
  Counter& bytes_sent_;
  Histogram& first_token_;
  Histogram& inter_token_;
  Histogram& per_token_;
  Histogram& end_to_end_;
  Histogram& queue_;
  Histogram& prefill_;
  Histogram& decode_;
  Histogram& request_prompt_;
  Histogram& request_output_;
  Histogram& max_tokens_;
  Histogram& choices_;
};

}  // namespace tidemill
