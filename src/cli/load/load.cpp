// tidemill load: how a server does under requests that do not wait for each other.
// docs/benchmarking.md is its manual.
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/load/options.h"
#include "cli/load/summary.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "text/utf8.h"

namespace tidemill::cli {
namespace {

Result<std::string> read_api_key(const std::string& variable) {
  if (variable.empty()) return std::string();
  const char* value = std::getenv(variable.c_str());
  const std::string key = value == nullptr ? "" : value;
  const auto is_plain = [](char c) { return c > ' ' && c < 0x7f; };
  if (key.empty() || !std::all_of(key.begin(), key.end(), is_plain)) {
    return fail(ErrorCode::kInvalidArgument, "--api-key-env: the variable {} is {}", variable,
                key.empty() ? "empty or not set" : "no key: it holds spaces or unusual bytes");
  }
  return key;
}

Result<std::string> first_model(const LoadServer& server, double timeout_s) {
  TRY(const std::string body, http_get(server, "/v1/models", timeout_s));
  const auto json = parse_json(body);
  if (json && json->is_object() && json->contains("data") && (*json)["data"].is_array()) {
    for (const Json& model : (*json)["data"]) {
      if (!model.is_object() || !model.contains("id") || !model["id"].is_string()) continue;
      return model["id"].get<std::string>();
    }
  }
  return fail(ErrorCode::kRequest, "{}/v1/models names no model; give one with --model",
              server.url.text());
}

// The arrivals of a trace within the limits; the items beyond them are dropped.
std::vector<double> trace_arrivals(std::vector<TraceItem>& trace, const LoadOptions& options) {
  std::vector<double> times;
  for (const TraceItem& item : trace) {
    if (options.duration_s > 0 && item.at_s >= options.duration_s) break;
    if (options.requests > 0 && static_cast<int64_t>(times.size()) == options.requests) break;
    times.push_back(item.at_s);
  }
  trace.resize(times.size());
  return times;
}

Result<std::vector<double>> plan_arrivals(std::vector<TraceItem>& trace,
                                          const LoadOptions& options) {
  if (!options.trace.empty()) {
    TRY(trace, read_trace(options.trace));
    const auto has_messages = [](const TraceItem& item) { return !item.messages.is_null(); };
    if (options.load_endpoint() == LoadEndpoint::kCompletions &&
        std::any_of(trace.begin(), trace.end(), has_messages)) {
      return fail(ErrorCode::kRequest, "{} has \"messages\", which --endpoint completions has not",
                  options.trace);
    }
    return trace_arrivals(trace, options);
  }
  const double seconds =
      options.duration_s > 0 ? options.duration_s : std::numeric_limits<double>::infinity();
  const int64_t most = options.requests > 0 ? options.requests : kMaxBenchRequests;
  return arrival_times(options.process(), options.rate, most, seconds, options.seed);
}

// One after another. Their failures matter only if none succeeds: then the run would tell nothing.
Status warm_up(const LoadPlan& like, const LoadBodies& bodies, int64_t count) {
  const std::vector<double> arrivals(static_cast<size_t>(count), 0.0);
  LoadPlan plan = like;
  plan.arrivals = arrivals;
  plan.connections = 1;
  plan.timeout_s = like.timeout_s * static_cast<double>(count);
  plan.body = [&](size_t index) { return bodies.warmup_body(index); };
  plan.progress = nullptr;
  TRY(const LoadRun run, run_load(plan));
  if (run.interrupted || run.records.empty()) return {};
  const auto ok = [](const LoadRecord& record) { return record.ok(); };
  if (std::any_of(run.records.begin(), run.records.end(), ok)) return {};
  const LoadRecord& first = run.records.front();
  return fail(ErrorCode::kRequest, "none of the {} warm-up requests succeeded: {} (HTTP {}): {}",
              count, first.reason, first.status, first.detail);
}

Status write_records(AtomicFile& file, const std::vector<LoadRecord>& records, bool gaps) {
  for (const LoadRecord& record : records) {
    CHECK_OK(file.write(load_record_json(record, gaps).dump() + "\n"));
  }
  return file.commit();
}

Status load(const LoadOptions& options) {
  LoadPlan plan;
  plan.server.url = options.server;
  TRY(plan.server.api_key, read_api_key(options.api_key_env));
  std::vector<TraceItem> trace;
  TRY(const std::vector<double> arrivals, plan_arrivals(trace, options));
  // Created before anything is measured: a path that cannot be written fails at once.
  std::optional<AtomicFile> out;
  if (!options.out.empty()) {
    TRY(out, AtomicFile::create(options.out));
  }

  LoadBodies bodies{.endpoint = options.load_endpoint(),
                    .model = options.model,
                    .ignore_eos = options.ignore_eos,
                    .extra = options.extra_fields,
                    .shape = options.shape,
                    .trace = trace};
  if (bodies.model.empty()) {
    TRY(bodies.model, first_model(plan.server, std::min(options.timeout_s, 30.0)));
  }
  plan.path = path_of(bodies.endpoint);
  plan.arrivals = arrivals;
  plan.body = [&](size_t index) { return bodies.body(index); };
  plan.connections = options.connections;
  plan.timeout_s = options.timeout_s;
  InterruptFlag interrupt;
  plan.cancel = &interrupt.flag();
  if (options.warmup > 0) CHECK_OK(warm_up(plan, bodies, options.warmup));
  if (interrupt.flag()) return fail(ErrorCode::kCancelled, "interrupted while warming up");

  ProgressBar bar("load");
  plan.progress = [&](double fraction) { bar.update(fraction); };
  TRY(const LoadRun run, run_load(plan));
  bar.finish();

  const LoadIntent intent{.target = options.server.text() + plan.path,
                          .model = replace_invalid_utf8(bodies.model),
                          .process = options.process(),
                          .rate = options.rate,
                          .planned = static_cast<int64_t>(arrivals.size()),
                          .connections = options.connections,
                          .seed = options.seed,
                          .slo = options.limits};
  const LoadSummary summary = summarise(run.records, intent);
  if (out) CHECK_OK(write_records(*out, run.records, options.gaps));
  if (options.json) {
    Json json = load_summary_json(summary, intent);
    json["interrupted"] = run.interrupted;
    CHECK_OK(write_stdout(python_json(json) + "\n"));
  } else {
    CHECK_OK(write_stdout(load_summary_text(summary, intent)));
  }
  if (run.interrupted) {
    return fail(ErrorCode::kCancelled, "interrupted; {} of {} requests had ended",
                summary.ok + summary.failed, arrivals.size());
  }
  if (summary.ok == 0 && summary.failed > 0) {
    return fail(ErrorCode::kRequest, "no request succeeded: {}", summary.failures.front().example);
  }
  return {};
}

}  // namespace

void add_load(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand(
      "load", "A server under load: arrivals in an open loop, latencies, goodput; plain HTTP");
  const auto options = std::make_shared<LoadOptions>();
  options->add_to(*command);
  command->callback([command, options, &action] {
    const Status status = options->check_flags(*command);
    action = [options, status] { return status ? load(*options) : status; };
  });
}

}  // namespace tidemill::cli
