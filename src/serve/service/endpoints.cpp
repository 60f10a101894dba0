#include "serve/service/endpoints.h"

#include <ctime>
#include <utility>

namespace tidemill {
namespace {

constexpr size_t kRecent = 50;  // requests on the status page

Json openai_entry(const Service& service, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", static_cast<int64_t>(service.started_unix_s)},
          {"owned_by", "tidemill"},
          {"max_model_len", service.model.context}};
}

// As Anthropic's clients expect it.
Json anthropic_entry(const Service& service, const std::string& name) {
  const auto started = static_cast<std::time_t>(service.started_unix_s);
  std::tm time{};
  ::gmtime_r(&started, &time);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &time);
  return {{"type", "model"},
          {"id", name},
          {"display_name", name},
          {"created_at", text},
          {"lifecycle", "active"}};
}

Json model_entry(const Service& service, const std::string& name, Protocol protocol) {
  return protocol == Protocol::kMessages ? anthropic_entry(service, name)
                                         : openai_entry(service, name);
}

Json totals_json(const UsageTotals& totals) {
  Json outcomes = Json::object();
  for (size_t i = 0; i < kOutcomes.size(); ++i) {
    if (totals.by_outcome[i] > 0) outcomes[std::string(kOutcomes[i])] = totals.by_outcome[i];
  }
  return {{"requests", totals.requests},
          {"outcomes", std::move(outcomes)},
          {"prompt_tokens", totals.prompt_tokens},
          {"cached_tokens", totals.cached_tokens},
          {"completion_tokens", totals.output_tokens},
          {"reasoning_tokens", totals.reasoning_tokens},
          {"total_tokens", totals.tokens()}};
}

Json percentiles_json(const ServeMetrics::Percentiles& seconds) {
  return {{"count", seconds.count},
          {"p50_ms", 1e3 * seconds.p50},
          {"p90_ms", 1e3 * seconds.p90},
          {"p99_ms", 1e3 * seconds.p99}};
}

Json record_json(const RequestRecord& record) {
  return {{"id", record.id},
          {"client", record.client},
          {"endpoint", record.endpoint},
          {"stream", record.stream},
          {"status", record.status},
          {"outcome", record.outcome},
          {"reason", record.reason},
          {"arrived_unix_s", record.arrived_unix_s},
          {"prompt_tokens", record.prompt_tokens},
          {"cached_tokens", record.cached_tokens},
          {"output_tokens", record.output_tokens},
          {"first_token_ms", record.first_token_ms},
          {"total_ms", record.ended_ms}};
}

Json engine_json(const Stats& stats) {
  Json misses = Json::object();
  for (const auto& [reason, count] : stats.cache_misses) misses[reason] = count;
  return {{"running", stats.running},
          {"waiting", stats.waiting},
          {"preemptions", stats.preemptions},
          {"steps", stats.steps},
          {"device_busy_ms", stats.device_busy_ms},
          {"device_idle_ms", stats.device_idle_ms},
          {"pool", {{"blocks", stats.pool_blocks}, {"free", stats.free_blocks}}},
          {"slots", {{"total", stats.slots}, {"free", stats.free_slots}}},
          {"cache",
           {{"asked_tokens", stats.cache_asked_tokens},
            {"hit_tokens", stats.cache_hit_tokens},
            {"blocks", stats.cache_blocks},
            {"misses", std::move(misses)}}},
          {"drafts", {{"drafted", stats.drafted}, {"accepted", stats.accepted}}}};
}

ServerGauges gauges(const Service& service) {
  ServerGauges gauges;
  if (const HttpServer* http = service.http) {
    const HttpStats stats = http->stats();
    gauges.connections = stats.connections;
    gauges.body_bytes = stats.body_bytes;
  }
  gauges.body_bytes += service.workers.bytes();
  gauges.streams = service.streams;
  gauges.waiting_preparation = service.workers.pending();
  gauges.clients = static_cast<int64_t>(service.keys.clients().size());
  gauges.idempotency_entries = static_cast<int64_t>(service.idempotency.entries());
  gauges.idempotency_bytes = static_cast<int64_t>(service.idempotency.bytes());
  gauges.ledger_errors = service.ledger->write_errors();
  gauges.draining = service.draining;
  return gauges;
}

}  // namespace

Json models_json(const Service& service, Protocol protocol) {
  Json data = Json::array();
  for (const std::string& name : service.model.names) {
    if (name != "*") data.push_back(model_entry(service, name, protocol));
  }
  if (protocol != Protocol::kMessages) return {{"object", "list"}, {"data", std::move(data)}};
  const Json first = data.front()["id"];
  const Json last = data.back()["id"];
  return {{"data", std::move(data)}, {"has_more", false}, {"first_id", first}, {"last_id", last}};
}

tl::expected<Json, HttpError> model_json(const Service& service, std::string_view name,
                                         Protocol protocol) {
  if (service.model.answers_to(name)) return model_entry(service, std::string(name), protocol);
  return tl::unexpected(no_such_model(name, service.model));
}

Json usage_json(const Service& service, const ApiClient& client) {
  Json keys = Json::array();
  const auto add = [&](const std::string& name, const UsageTotals& totals) {
    Json entry = {{"client", name}};
    entry.update(totals_json(totals));
    keys.push_back(std::move(entry));
  };
  if (client.admin || service.keys.is_anonymous()) {
    for (const auto& [name, totals] : service.ledger->all()) add(name, totals);
  } else {
    add(client.name, service.ledger->of(client.name));
  }
  return {{"object", "list"}, {"data", std::move(keys)}};
}

Json status_json(Service& service) {
  const ServeMetrics::Totals totals = service.metrics.totals();
  const Clock::time_point now = Clock::now();
  const RecentWindow::Rates rates = service.metrics.recent().rates(now);
  Json history = Json::array();
  for (const RecentWindow::Amounts& second : service.metrics.recent().history(now)) {
    history.push_back({second.output_tokens, second.prompt_tokens, second.requests});
  }
  Json recent = Json::array();
  for (const RequestRecord& record : service.traces.recent(kRecent)) {
    recent.push_back(record_json(record));
  }
  Json outcomes = Json::object();
  for (size_t i = 0; i < kOutcomes.size(); ++i) {
    outcomes[std::string(kOutcomes[i])] = totals.by_outcome[i];
  }
  const ServerGauges server = gauges(service);
  return {{"model", service.model.names.front()},
          {"context", service.model.context},
          {"version", TIDEMILL_VERSION},
          {"uptime_s", seconds_since(service.started)},
          {"draining", server.draining},
          {"connections", server.connections},
          {"streams", server.streams},
          {"in_flight", totals.in_flight},
          {"rates",
           {{"output_tokens_per_s", rates.output_tokens},
            {"prompt_tokens_per_s", rates.prompt_tokens},
            {"requests_per_s", rates.requests}}},
          {"history", std::move(history)},  // of each second: output, prompt, requests
          {"latency",
           {{"first_token", percentiles_json(service.metrics.time_to_first_token())},
            {"inter_token", percentiles_json(service.metrics.inter_token_latency())},
            {"total", percentiles_json(service.metrics.end_to_end())},
            {"queue", percentiles_json(service.metrics.queue_time())}}},
          {"totals",
           {{"received", totals.received},
            {"outcomes", std::move(outcomes)},
            {"prompt_tokens", totals.prompt_tokens},
            {"cached_tokens", totals.cached_tokens},
            {"output_tokens", totals.output_tokens},
            {"reasoning_tokens", totals.reasoning_tokens}}},
          {"engine", engine_json(service.engine.stats())},
          {"recent", std::move(recent)}};
}

std::string metrics_text(const Service& service) {
  return service.metrics.expose(service.engine.stats(), gauges(service));
}

}  // namespace tidemill
