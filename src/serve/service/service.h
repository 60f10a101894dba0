// What all threads of a server share. Every member may be used from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "observe/ledger.h"
#include "observe/serve_metrics.h"
#include "observe/trace.h"
#include "serve/access/idempotency.h"
#include "serve/access/keys.h"
#include "serve/access/quota.h"
#include "serve/http/http_server.h"
#include "serve/served_engine.h"
#include "serve/service/prepare.h"
#include "serve/service/span_exporter.h"
#include "serve/service/work_queue.h"

namespace tidemill {

double unix_seconds();  // wall clock

struct ServiceOptions {
  std::vector<std::string> model_names = {"tidemill"};  // ServedModel::names
  RequestPolicy policy;
  double request_timeout_s = 600;    // for a whole answer, when X-Request-Timeout does not say
  double keep_alive_s = 10;          // of silence, after which a stream gets a comment
  bool cache_per_key = false;        // cached state is shared among requests of one key only
  std::vector<std::string> origins;  // of web pages whose scripts may call this server
  std::vector<std::string> hosts;    // names in Host that are answered; empty: all
  bool log_bodies = false;           // bodies of requests go to the log
  int work_threads = 1;              // that read and tokenise
  WorkLimits work;                   // bodies that wait for them
  std::filesystem::path ledger;      // "": totals are kept in memory only
  std::string otlp_endpoint;         // of a collector for traces; "": none
};

struct Service {
  // Engine and tokenizer must outlive it. Errors: those of UsageLedger::open and parse_url.
  static Result<std::unique_ptr<Service>> create(ServiceOptions options, KeyRing keys,
                                                 ServedEngine& engine, const Tokenizer& tokenizer);
  Service(ServiceOptions options, KeyRing keys, ServedEngine& engine, const Tokenizer& tokenizer,
          std::unique_ptr<UsageLedger> ledger);

  // Of a request that metrics.received() was told of: to all that counts.
  void record(const RequestRecord& record);

  const ServiceOptions options;
  const ServedModel model;
  ServedEngine& engine;
  const KeyRing keys;
  const std::unique_ptr<UsageLedger> ledger;
  ServeMetrics metrics;
  RequestTrace traces;
  std::unique_ptr<SpanExporter> exporter;  // null: none
  Quotas quotas;
  IdempotencyStore idempotency;
  std::atomic<bool> draining{false};             // no new work
  std::atomic<int64_t> answers{0};               // exchanges that have not ended
  std::atomic<int64_t> streams{0};               // of them: that have begun to stream
  std::atomic<const HttpServer*> http{nullptr};  // once there is one
  const Clock::time_point started = Clock::now();
  const double started_unix_s = unix_seconds();
  WorkQueue workers;  // last: its threads use the others
};

// As http_error(); what becomes a 500 is logged, with `what` for its name.
HttpError report(const Error& error, std::string_view what, bool has_begun = false);

// 24 random characters a-z 0-9 (124 bits).
std::string random_nonce();
uint64_t random_seed();

// Refusals of the server itself: 503.
HttpError draining_error();
HttpError overloaded_error(std::string_view what);

// Paths of the answers' endpoints, for the labels of metrics.
const std::vector<std::string>& answer_endpoints();

}  // namespace tidemill
