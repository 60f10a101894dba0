#include "serve/service/service.h"

#include <openssl/rand.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "base/log.h"
#include "observe/access_line.h"

namespace tidemill {
namespace {

ServedModel served_model(const ServiceOptions& options, const ServedEngine& engine,
                         const Tokenizer& tokenizer) {
  return {.tokenizer = &tokenizer,
          .context = engine.info().context,
          .longest_token = longest_token(tokenizer),
          .policy = options.policy,
          .names = options.model_names};
}

void random_bytes(void* bytes, size_t count) {
  if (RAND_bytes(static_cast<unsigned char*>(bytes), static_cast<int>(count)) == 1) return;
  // Ids and seeds are not secrets: better these than no answer.
  static std::atomic<uint64_t> counter{0};
  std::mt19937_64 generator(std::random_device{}() + counter++);
  std::generate_n(static_cast<uint8_t*>(bytes), count,
                  [&] { return static_cast<uint8_t>(generator()); });
}

HttpError unavailable(std::string message, std::string code, int64_t retry_after_s) {
  return {.status = 503,
          .retry_after_s = retry_after_s,
          .message = std::move(message),
          .type = "server_error",
          .code = std::move(code)};
}

}  // namespace

Result<std::unique_ptr<Service>> Service::create(ServiceOptions options, KeyRing keys,
                                                 ServedEngine& engine, const Tokenizer& tokenizer) {
  auto ledger = std::make_unique<UsageLedger>();
  if (!options.ledger.empty()) {
    TRY(ledger, UsageLedger::open(options.ledger));
  }
  std::optional<ServerUrl> collector;
  if (!options.otlp_endpoint.empty()) {
    TRY(collector, parse_url("--otlp-traces-endpoint", options.otlp_endpoint));
  }
  auto service = std::make_unique<Service>(std::move(options), std::move(keys), engine, tokenizer,
                                           std::move(ledger));
  if (collector) service->exporter = std::make_unique<SpanExporter>(*collector, "tidemill");
  return service;
}

Service::Service(ServiceOptions given, KeyRing ring, ServedEngine& served,
                 const Tokenizer& tokenizer, std::unique_ptr<UsageLedger> book)
    : options(std::move(given)),
      model(served_model(options, served, tokenizer)),
      engine(served),
      keys(std::move(ring)),
      ledger(std::move(book)),
      metrics({.model_name = model.names.front(),
               .version = TIDEMILL_VERSION,
               .endpoints = answer_endpoints()}),
      quotas([this](std::string_view client) { return ledger->of(client).tokens(); }),
      workers(options.work_threads, options.work) {}

void Service::record(const RequestRecord& record) {
  metrics.observe(record);
  ledger->add(record);
  traces.add(record);
  if (exporter) exporter->add(record);
  log_info("{}", access_line(record));
}

HttpError report(const Error& error, std::string_view what, bool has_begun) {
  HttpError http = http_error(error, has_begun);
  if (http.status == 500) log_error("{}: {}", what, error.message);
  return http;
}

std::string random_nonce() {
  constexpr std::string_view kAlphabet = "abcdefghijklmnopqrstuvwxyz0123456789";
  // 7 of 256 values fall on a character more often than the others: no matter for an id.
  unsigned char bytes[24];
  random_bytes(bytes, sizeof(bytes));
  std::string nonce;
  for (const unsigned char byte : bytes) nonce += kAlphabet[byte % kAlphabet.size()];
  return nonce;
}

uint64_t random_seed() {
  uint64_t seed = 0;
  random_bytes(&seed, sizeof(seed));
  return seed >> 11;  // below 2^53: every client can send it back
}

double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

HttpError draining_error() {
  return unavailable("the server is shutting down and takes no new requests; try another one",
                     "draining", 5);
}

HttpError overloaded_error(std::string_view what) {
  return unavailable(fmt::format("overloaded: too many {}; try again in 1 s", what), "overloaded",
                     1);
}

const std::vector<std::string>& answer_endpoints() {
  static const std::vector<std::string> endpoints = {"/v1/chat/completions", "/v1/completions",
                                                     "/v1/responses", "/v1/messages"};
  return endpoints;
}

}  // namespace tidemill
