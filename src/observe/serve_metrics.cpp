#include "observe/serve_metrics.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>

#include "observe/engine_metrics.h"

namespace tidemill {
namespace {

// vLLM's finished_reason has no word for calls: there they are a stop.
std::string_view finished_reason(std::string_view outcome) {
  if (outcome == "tool_calls") return "stop";
  const bool is_known =
      outcome == "stop" || outcome == "length" || outcome == "abort" || outcome == "error";
  return is_known ? outcome : "";
}

// Between two points of a record; the first may not have been reached.
void observe_span(Histogram& histogram, double begin_ms, double end_ms) {
  if (begin_ms >= 0 && end_ms >= 0) histogram.observe((end_ms - begin_ms) / 1000);
}

ServeMetrics::Percentiles percentiles(const Histogram& histogram) {
  return {histogram.count(), histogram.quantile(0.5), histogram.quantile(0.9),
          histogram.quantile(0.99)};
}

std::vector<double> tokens_row() { return one_two_five(1, 1e6); }

double unix_now() {
  using Seconds = std::chrono::duration<double>;
  return Seconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

ServeMetrics::ServeMetrics(ServeMetricsOptions options)
    : options_(std::move(options)),
      start_unix_s_(unix_now()),
      recent_(options_.now()),
      received_(registry_.counters("tidemill:requests_received_total", "Requests that arrived.",
                                   {"endpoint"}, options_.endpoints.size() + 1)),
      finished_(registry_.counters("tidemill:requests_finished_total",
                                   "Requests that ended, by how; of an idle server their sum is "
                                   "that of the requests received.",
                                   {"outcome"})),
      success_(registry_.counters("vllm:request_success_total",
                                  "Requests that ended after the engine took them, by how.",
                                  {"finished_reason"})),
      aborts_(registry_.counters("tidemill:requests_aborted_total",
                                 "Requests cut off by client or server, by reason.", {"reason"})),
      errors_(registry_.counters("tidemill:requests_failed_total",
                                 "Requests that ended with an error, by reason.", {"reason"})),
      refusals_(registry_.counters("tidemill:requests_refused_total",
                                   "Requests refused before anything was computed, by reason.",
                                   {"reason"})),
      responses_(registry_.counters("tidemill:http_responses_total",
                                    "Answers by endpoint and status; 499: the client left before.",
                                    {"endpoint", "status"}, 512)),
      early_(registry_.counters("tidemill:http_refused_total",
                                "Requests that the HTTP server turned away by itself, by reason. "
                                "They are not among those received.",
                                {"reason"})),
      in_flight_(
          registry_.gauge("tidemill:requests_in_flight", "Requests received that have not ended.")),
      prompt_tokens_(registry_.counter("vllm:prompt_tokens_total",
                                       "Prompt tokens of requests that ended, as in their usage.")),
      cached_tokens_(registry_.counter("vllm:prompt_tokens_cached_total",
                                       "Of the prompt tokens: found in the cache.")),
      output_tokens_(registry_.counter("vllm:generation_tokens_total",
                                       "Output tokens of requests that ended, as in their usage.")),
      reasoning_tokens_(
          registry_.counter("tidemill:reasoning_tokens_total", "Of the output tokens: reasoning.")),
      unkept_calls_(registry_.counter("tidemill:unkept_calls_total",
                                      "Answers whose reasoning names a tool, and that call none.")),
      bytes_sent_(registry_.counter("tidemill:bytes_sent_total", "Bytes of answers.")),
      first_token_(registry_.histogram("vllm:time_to_first_token_seconds",
                                       "From the arrival of a request to its first token; queue "
                                       "and preparation are in it.",
                                       one_two_five(1e-3, 600))),
      inter_token_(registry_.histogram("vllm:inter_token_latency_seconds",
                                       "Time per output token after the first ones of a choice.",
                                       one_two_five(1e-4, 10))),
      per_token_(registry_.histogram("vllm:request_time_per_output_token_seconds",
                                     "Mean time per output token of a request after its first.",
                                     one_two_five(1e-4, 10))),
      end_to_end_(registry_.histogram("vllm:e2e_request_latency_seconds",
                                      "From the arrival of a request to the end of its answer.",
                                      one_two_five(1e-2, 3600))),
      queue_(registry_.histogram("vllm:request_queue_time_seconds",
                                 "From the hand-over to the engine to the first step.",
                                 one_two_five(1e-4, 600))),
      prefill_(registry_.histogram("vllm:request_prefill_time_seconds",
                                   "From the first step to the first token.",
                                   one_two_five(1e-3, 600))),
      decode_(registry_.histogram("vllm:request_decode_time_seconds",
                                  "From the first token to the end.", one_two_five(1e-3, 3600))),
      request_prompt_(registry_.histogram("vllm:request_prompt_tokens",
                                          "Prompt tokens of a request.", tokens_row())),
      request_output_(registry_.histogram("vllm:request_generation_tokens",
                                          "Output tokens of a request.", tokens_row())),
      max_tokens_(registry_.histogram("vllm:request_params_max_tokens",
                                      "max_tokens of requests that name it.", tokens_row())),
      choices_(registry_.histogram("vllm:request_params_n", "Choices of a request.",
                                   one_two_five(1, 128))) {
  // A rate needs a value before the first event.
  for (const std::string_view outcome : kOutcomes) {
    finished_.with({outcome});
    if (const auto reason = finished_reason(outcome); !reason.empty()) success_.with({reason});
  }
  for (const std::string& endpoint : options_.endpoints) received_.with({endpoint});
}

std::string_view ServeMetrics::known_endpoint(std::string_view endpoint) const {
  const auto& known = options_.endpoints;
  return std::find(known.begin(), known.end(), endpoint) != known.end() ? endpoint : "other";
}

void ServeMetrics::received(std::string_view endpoint) {
  received_.with({known_endpoint(endpoint)}).add();
  in_flight_.add(1);
}

void ServeMetrics::observe(const RequestRecord& record) {
  const size_t outcome = outcome_index(record.outcome);
  finished_.with({kOutcomes[outcome]}).add();
  in_flight_.add(-1);
  const auto status = fmt::format("{}", record.status);
  responses_.with({known_endpoint(record.endpoint), status}).add();
  bytes_sent_.add(record.bytes_sent);
  prompt_tokens_.add(record.prompt_tokens);
  cached_tokens_.add(record.cached_tokens);
  output_tokens_.add(record.output_tokens);
  reasoning_tokens_.add(record.reasoning_tokens);
  unkept_calls_.add(record.unkept_calls);
  recent_.add({.requests = 1}, options_.now());

  std::string_view reason = record.reason;
  if (reason.empty()) reason = "other";
  if (record.outcome == "abort") aborts_.with({reason}).add();
  if (record.outcome == "error") errors_.with({reason}).add();
  if (record.outcome == "refused") refusals_.with({reason}).add();

  const std::string_view finished = finished_reason(record.outcome);
  if (finished.empty()) return;  // the engine had nothing to do with it
  success_.with({finished}).add();
  observe_span(end_to_end_, 0, record.ended_ms);
  observe_span(queue_, record.prepared_ms, record.started_ms);
  request_prompt_.observe(static_cast<double>(record.prompt_tokens));
  request_output_.observe(static_cast<double>(record.output_tokens));
  if (record.max_tokens > 0) max_tokens_.observe(static_cast<double>(record.max_tokens));
  if (record.choices > 0) choices_.observe(static_cast<double>(record.choices));
  if (record.output_tokens < 1) return;
  observe_span(first_token_, 0, record.first_token_ms);
  observe_span(prefill_, record.started_ms, record.first_token_ms);
  observe_span(decode_, record.first_token_ms, record.ended_ms);
  if (record.output_tokens > 1 && record.first_token_ms >= 0) {
    const auto later = static_cast<double>(record.output_tokens - 1);
    per_token_.observe((record.ended_ms - record.first_token_ms) / 1000 / later);
  }
}

void ServeMetrics::first_tokens(int64_t tokens, int64_t prompt_tokens) {
  recent_.add({.output_tokens = tokens, .prompt_tokens = prompt_tokens}, options_.now());
}

void ServeMetrics::inter_token(double seconds, int64_t tokens) {
  if (tokens < 1) return;
  inter_token_.observe(seconds / static_cast<double>(tokens), tokens);
  recent_.add({.output_tokens = tokens}, options_.now());
}

void ServeMetrics::refused(std::string_view reason) { early_.with({reason}).add(); }

std::string ServeMetrics::expose(const Stats& engine, const ServerGauges& server) const {
  PrometheusText text({{"model_name", options_.model_name}});
  registry_.write(text);
  write_engine_metrics(text, engine);

  text.gauge("tidemill:connections", "Open connections.", server.connections);
  text.gauge("tidemill:streams", "Streamed answers that are going on.", server.streams);
  text.gauge("tidemill:requests_preparing",
             "Requests whose body is being parsed and tokenised, or waits for it.",
             server.waiting_preparation);
  text.gauge("tidemill:body_bytes", "Memory of request bodies.", server.body_bytes);
  text.gauge("tidemill:clients", "API keys known.", server.clients);
  text.gauge("tidemill:idempotency_entries", "Idempotency keys remembered.",
             server.idempotency_entries);
  text.gauge("tidemill:idempotency_bytes", "Memory of answers kept for them.",
             server.idempotency_bytes);
  text.counter("tidemill:ledger_errors_total", "Records that the usage ledger's file lacks.",
               server.ledger_errors);
  text.gauge("tidemill:draining", "1: the server takes no more requests.",
             int64_t{server.draining ? 1 : 0});
  text.gauge("process_start_time_seconds", "Start of the server, Unix time.", start_unix_s_);
  text.family("tidemill:build_info", "gauge", "Always 1; the label has the version.");
  text.sample(int64_t{1}, {{"version", options_.version}});
  return text.take();
}

ServeMetrics::Percentiles ServeMetrics::time_to_first_token() const {
  return percentiles(first_token_);
}
ServeMetrics::Percentiles ServeMetrics::inter_token_latency() const {
  return percentiles(inter_token_);
}
ServeMetrics::Percentiles ServeMetrics::end_to_end() const { return percentiles(end_to_end_); }
ServeMetrics::Percentiles ServeMetrics::queue_time() const { return percentiles(queue_); }

ServeMetrics::Totals ServeMetrics::totals() const {
  Totals totals;
  received_.visit([&](const auto&, const Counter& counter) { totals.received += counter.value(); });
  early_.visit(
      [&](const auto&, const Counter& counter) { totals.refused_early += counter.value(); });
  finished_.visit([&](const auto& values, const Counter& counter) {
    totals.by_outcome[outcome_index(values[0])] += counter.value();
  });
  totals.in_flight = static_cast<int64_t>(in_flight_.value());
  totals.prompt_tokens = prompt_tokens_.value();
  totals.cached_tokens = cached_tokens_.value();
  totals.output_tokens = output_tokens_.value();
  totals.reasoning_tokens = reasoning_tokens_.value();
  totals.bytes_sent = bytes_sent_.value();
  return totals;
}

}  // namespace tidemill
