#include "cli/bench/session.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/thread_team.h"
#include "cli/progress.h"
#include "model/config.h"
#include "state/layout.h"

namespace tidemill::cli {
namespace {

constexpr int64_t kOpenLoopSequences = 16;
constexpr int64_t kHostPrompt = 16;
constexpr int64_t kAliasPeriod = int64_t{64} << 20;  // of weights whose sizes alone matter

int64_t largest(const std::vector<int64_t>& values) {
  return *std::max_element(values.begin(), values.end());
}

std::vector<std::string> draft_modes(const BenchOptions& options) {
  return options.drafts.empty() ? std::vector<std::string>{"off"} : options.drafts;
}

int64_t drafts_of(const std::string& mode, const ModelLimits& limits) {
  return mode == "off" ? 0 : limits.max_drafts;
}

// Tokens of a step: unless the user says, enough for all requests with their drafts and for a
// prompt beside them.
int64_t step_tokens(const BenchOptions& options, int64_t sequences, int64_t drafts) {
  constexpr int64_t kPromptRows = 128;
  if (options.chunk_given) return options.engine.chunk;
  return std::max(EngineFlags::kChunk, sequences * (1 + drafts) + kPromptRows);
}

Result<std::vector<CellGroup>> plan_workload(const BenchOptions& options,
                                             const ModelLimits& limits) {
  std::vector<int64_t> loads = options.concurrency;
  if (loads.empty() && options.rates.empty()) loads = {8};
  int64_t context = 0;
  TRY(const auto output, LengthDistribution::parse("--output", options.output));
  if (options.workload == "synthetic") {
    TRY(const auto prompt, LengthDistribution::parse("--prompt", options.prompt));
    context = prompt.longest() + output.longest();
  }
  std::vector<CellGroup> groups;
  for (const std::string& drafts : draft_modes(options)) {
    const int64_t sequences = loads.empty() ? kOpenLoopSequences : largest(loads);
    CellGroup group{.drafts = drafts,
                    .chunk = step_tokens(options, sequences, drafts_of(drafts, limits)),
                    .sequences = sequences,
                    .context = context,
                    .cells = {}};
    for (const int64_t load : loads) group.cells.push_back({.concurrency = load});
    for (const double rate : options.rates) group.cells.push_back({.rate = rate});
    groups.push_back(std::move(group));
  }
  return groups;
}

// Of a prompt, tokens that have to be computed.
int64_t computed_tokens(const BenchOptions& options, int64_t prompt) {
  return std::max<int64_t>(prompt - options.fill_context / kBlockTokens * kBlockTokens, 1);
}

std::vector<CellGroup> plan_prefill(const BenchOptions& options) {
  std::vector<CellGroup> groups;
  for (const int64_t chunk : options.chunks) {
    CellGroup group{.drafts = "off",
                    .chunk = chunk,
                    .sequences = largest(options.batches),
                    .context = largest(options.prompts) + 1,
                    .cells = {}};
    for (const int64_t prompt : options.prompts) {
      for (const int64_t batch : options.batches) {
        group.cells.push_back(
            {.kind = CellKind::kPrefill, .concurrency = batch, .prompt_tokens = prompt});
      }
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

// Decode and host.
std::vector<CellGroup> plan_decode(const BenchOptions& options, const ModelLimits& limits) {
  const bool host = options.mode() == BenchMode::kHost;
  const std::vector<int64_t> contexts = host ? std::vector{kHostPrompt} : options.contexts;
  const std::vector<int64_t>& batches = host ? options.running : options.batches;
  std::vector<CellGroup> groups;
  for (const std::string& drafts : draft_modes(options)) {
    CellGroup group{.drafts = drafts,
                    .chunk = step_tokens(options, largest(batches), drafts_of(drafts, limits)),
                    .sequences = largest(batches),
                    .context = 0,
                    .cells = {}};
    for (const int64_t context : contexts) {
      for (const int64_t batch : batches) {
        group.cells.push_back({.kind = host ? CellKind::kHost : CellKind::kDecode,
                               .concurrency = batch,
                               .prompt_tokens = context});
        const int64_t output =
            decode_output_tokens(batch, computed_tokens(options, context), options.decode_tokens,
                                 group.chunk, drafts_of(drafts, limits));
        group.context = std::max(group.context, context + output);
      }
    }
    // Some blocks stay free when a request is admitted beside others (SchedulerOptions::watermark).
    if (options.fill_context > 0) group.context += group.context / 32;
    groups.push_back(std::move(group));
  }
  return groups;
}

class Session {
 public:
  Session(const BenchOptions& options, const std::atomic<bool>& cancel,
          const std::function<Status(const Json&)>& record)
      : options_(options), cancel_(cancel), record_(record) {}

  Result<SessionResult> run() {
    TRY(const auto directory, options_.engine.directory());
    TRY(const Config config, Config::load(directory));
    limits_ = {.context = config.max_position_embeddings,
               .max_drafts = config.num_nextn_predict_layers > 0 ? config.dspark_block_size : 0};
    TRY(const std::vector<CellGroup> groups, plan_groups(options_, limits_));
    if (options_.floor) CHECK_OK(measure_floor(directory));
    result_.model = directory.string();
    for (const CellGroup& group : groups) all_ += group.cells.size();
    for (const CellGroup& group : groups) {
      if (const Status status = measure(group); !status) {
        if (result_.cells.empty()) return tl::unexpected(status.error());
        result_.error = status;
      }
      if (result_.interrupted || !result_.error) break;
    }
    return std::move(result_);
  }

 private:
  Status measure_floor(const std::filesystem::path& directory) {
    TRY(const auto model, Model::load(directory, {.progress = {},
                                                  .prefault = false,
                                                  .alias_bytes = options_.alias_bytes(),
                                                  .alias_period = kAliasPeriod}));
    const EngineFlags& engine = options_.engine;
    const int threads = engine.threads > 0 ? engine.threads : ThreadTeam::available_threads();
    TRY(const WeightTraffic traffic, weight_traffic(*model));
    floor_ = Floor{.traffic = traffic,
                   .bytes_per_second = measure_read_bandwidth(engine.backend, threads),
                   .prefill = prefill_work(*model)};
    // Under bounded replay most tokens pass half of the layers.
    if (engine.replay_keep == 0) {
      floor_->flops_per_second = measure_peak_flops(engine.backend, threads);
    }
    result_.read_bytes_per_second = floor_->bytes_per_second;
    result_.peak_flops_per_second = floor_->flops_per_second;
    result_.token_flops = floor_->prefill.token_flops;
    return {};
  }

  std::optional<double> floor_ms(const CellShape& shape, const CellSummary& summary) const {
    if (!floor_) return std::nullopt;
    if (shape.kind == CellKind::kDecode) return floor_->step_ms(summary, shape.concurrency);
    if (floor_->flops_per_second == 0) return std::nullopt;
    return floor_->prompt_ms(shape.prompt_tokens);
  }

  Status measure(const CellGroup& group) {
    TRY(const auto engine, open(group));
    CHECK_OK(describe(*engine));
    for (CellShape shape : group.cells) {
      shape.drafts = group.drafts;
      shape.chunk = group.chunk;
      CHECK_OK(measure(*engine, shape));
      if (result_.interrupted) break;
    }
    return {};
  }

  Result<std::unique_ptr<Engine>> open(const CellGroup& group) {
    EngineFlags flags = options_.engine;
    flags.chunk = group.chunk;
    if (flags.context == 0) flags.context = std::min(group.context, limits_.context);
    Options options = options_.engine_options();
    options.drafts = group.drafts;
    // A closed loop never has more waiting than it keeps in flight, and none is to be refused.
    options.max_waiting = std::max(options.max_waiting, group.sequences);
    options.max_tenant_waiting = std::max(options.max_tenant_waiting, group.sequences);
    if (options.sequences == 0) options.sequences = group.sequences;
    auto engine = flags.open(std::move(options));
    // A sweep gets its steps from the plural flag.
    constexpr std::string_view kFlag = "--chunk: ";
    if (!engine && options_.mode() == BenchMode::kPrefill &&
        engine.error().message.starts_with(kFlag)) {
      engine.error().message.replace(0, kFlag.size(), "--chunks: ");
    }
    return engine;
  }

  // The machine, once it is known how many threads the engine has.
  Status describe(const Engine& engine) {
    if (described_) return {};
    described_ = true;
    result_.machine = this_machine(options_.engine.backend, engine.info().threads);
    Json json = {{"record", "machine"}};
    json.update(to_json(result_.machine));
    json["model"] = result_.model;
    json["weight_bytes"] = engine.info().weight_bytes;
    json["weights_held"] = engine.info().weights_held;
    if (floor_) {
      json["read_bytes_per_second"] = floor_->bytes_per_second;
      json["peak_flops_per_second"] = floor_->flops_per_second;
      json["prefill_flops_per_token"] = floor_->prefill.token_flops;
    }
    return record_(json);
  }

  Result<std::vector<WorkItem>> items_of(const CellShape& shape, const Engine& engine) {
    const ModelInfo& info = engine.info();
    const TokenSource tokens{.vocabulary = info.vocabulary, .excluded = info.end_tokens};
    if (shape.kind != CellKind::kWorkload) {
      const int64_t output =
          shape.kind == CellKind::kPrefill
              ? 1
              : decode_output_tokens(
                    shape.concurrency, computed_tokens(options_, shape.prompt_tokens),
                    options_.decode_tokens, shape.chunk, drafts_of(shape.drafts, limits_));
      return batch_items(shape.concurrency, shape.prompt_tokens, output, tokens, options_.seed);
    }
    TRY(const auto output, LengthDistribution::parse("--output", options_.output));
    if (options_.workload == "synthetic") {
      TRY(const auto prompt, LengthDistribution::parse("--prompt", options_.prompt));
      return synthetic_workload({.requests = options_.requests,
                                 .prompt = prompt,
                                 .output = output,
                                 .shared_prefix = options_.shared_prefix,
                                 .seed = options_.seed},
                                tokens);
    }
    return read_workload(options_.workload, output, options_.seed, tokens,
                         [&](std::string_view text) { return engine.encode(text); });
  }

  // The same requests for every engine; standard input could not be read twice anyway.
  Result<const std::vector<WorkItem>*> items_for(const CellShape& shape, const Engine& engine) {
    if (shape.kind != CellKind::kWorkload || items_.empty()) {
      TRY(items_, items_of(shape, engine));
    }
    return &items_;
  }

  Status measure(Engine& engine, const CellShape& shape) {
    const size_t number = result_.cells.size();
    TRY(const auto* items, items_for(shape, engine));
    ProgressBar bar(fmt::format("cell {} of {}: {}, drafts {}", number + 1, all_,
                                to_string(shape.kind), shape.drafts));
    const int64_t default_repeats = shape.kind == CellKind::kWorkload ? 1 : 3;
    const CellRuns runs{.warmups = options_.warmups,
                        .repeats = options_.repeats > 0 ? options_.repeats : default_repeats,
                        .temperature = options_.temperature,
                        .seed = options_.seed,
                        .decode_tokens = options_.decode_tokens,
                        .cancel = &cancel_,
                        .progress = [&](double fraction) { bar.update(fraction); }};
    TRY(const Cell cell, measure_cell(engine, shape, *items, runs));
    bar.finish();
    result_.interrupted = cancel_;
    if (cell.runs.empty()) return {};
    MeasuredCell measured{.shape = shape, .summary = summarise(cell), .floor_ms = {}};
    measured.floor_ms = floor_ms(shape, measured.summary);
    for (size_t run = 0; run < cell.runs.size(); ++run) {
      for (const RequestRecord& request : cell.runs[run].records) {
        CHECK_OK(record_(
            request_json(request, shape, number, static_cast<int64_t>(run), options_.gaps)));
      }
    }
    CHECK_OK(record_(cell_json(measured, number)));
    result_.cells.push_back(std::move(measured));
    return {};
  }

  const BenchOptions& options_;
  const std::atomic<bool>& cancel_;
  const std::function<Status(const Json&)>& record_;
  ModelLimits limits_;
  std::optional<Floor> floor_;
  std::vector<WorkItem> items_;
  size_t all_ = 0;
  bool described_ = false;
  SessionResult result_;
};

}  // namespace

Result<std::vector<CellGroup>> plan_groups(const BenchOptions& options, const ModelLimits& limits) {
  if (options.mode() == BenchMode::kWorkload) return plan_workload(options, limits);
  if (options.mode() == BenchMode::kPrefill) return plan_prefill(options);
  return plan_decode(options, limits);
}

Result<SessionResult> run_session(const BenchOptions& options, const std::atomic<bool>& cancel,
                                  const std::function<Status(const Json&)>& record) {
  return Session(options, cancel, record).run();
}

}  // namespace tidemill::cli
