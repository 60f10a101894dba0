#include "engine/model_runner.h"

#include <unistd.h>

#include <algorithm>
#include <limits>

#include "base/log.h"
#include "engine/named_backends.h"
#include "state/memory_plan.h"
#include "state/random_state.h"
#include "state/window_snapshots.h"

namespace tidemill {
namespace {

// Of random weights on the host, where a device holds all of them.
constexpr int64_t kAliasPeriod = int64_t{512} << 20;

Status check(const RunnerOptions& options) {
  const auto in_range = [](int64_t value, int64_t low, int64_t high,
                           std::string_view name) -> Status {
    if (value >= low && value <= high) return {};
    return fail(ErrorCode::kInvalidArgument, "{} is {}; it must be between {} and {}", name, value,
                low, high);
  };
  CHECK_OK(in_range(options.threads, 0, 1024, "the number of threads"));
  CHECK_OK(in_range(options.max_step_tokens, 1, 65536, "the prefill chunk"));
  CHECK_OK(in_range(options.sequences, 1, 65536, "the number of sequences"));
  CHECK_OK(in_range(options.pool_blocks, 0, std::numeric_limits<int32_t>::max(), "the pool"));
  CHECK_OK(in_range(options.state_bytes, RunnerOptions::kAutoState,
                    std::numeric_limits<int64_t>::max() / 4, "the memory for state"));
  CHECK_OK(in_range(options.context, 0, int64_t{1} << 30, "the context"));
  CHECK_OK(in_range(options.fill_context, 0, int64_t{1} << 30, "the filled context"));
  return in_range(options.replay_keep, 0, int64_t{1} << 30, "the replay length");
}

}  // namespace

Result<std::unique_ptr<ModelRunner>> ModelRunner::load(const std::filesystem::path& directory,
                                                       const RunnerOptions& options,
                                                       std::function<void(double)> progress) {
  CHECK_OK(check(options));
  std::unique_ptr<ModelRunner> runner(new ModelRunner);
  runner->options_ = options;
  const int threads = options.threads > 0 ? options.threads : ThreadTeam::available_threads();
  runner->team_ = std::make_unique<ThreadTeam>(threads);
  if (options.make_backend) {
    runner->backend_ = options.make_backend(*runner->team_);
  } else {
    TRY(runner->backend_, make_named_backend(options.backend, options.rounding, *runner->team_));
  }
  const bool device = !runner->backend_->host_memory();
  if (device && options.memory_bytes > 0) {
    return fail(ErrorCode::kConflictingOptions,
                "--memory is for weights that stay on the disk of a cpu backend; {} holds all",
                options.backend);
  }
  // What is copied to a device needs no second copy on the host, and random weights hardly a first.
  const bool mapped = device && options.huge_pages == HugePages::kAuto;
  const int64_t period = device && options.alias_bytes > 0 ? kAliasPeriod : 0;
  TRY(runner->model_,
      Model::load(directory, {.progress = std::move(progress),
                              .memory_bytes = options.memory_bytes,
                              .alias_bytes = options.alias_bytes,
                              .alias_period = period,
                              .huge_pages = mapped ? HugePages::kOff : options.huge_pages,
                              .nodes = runner->team_->nodes()}));
  log_info("weights: {}; {}", how_held(runner->model_->checkpoint()),
           runner->team_->nodes().describe());
  const int64_t memory = options.memory_bytes;
  if (memory > 0 && options.alias_bytes == 0 &&
      !WeightResidency::of(*runner->model_).fits(memory)) {
    TRY(runner->pager_, WeightPager::create(*runner->model_, memory));
  }

  const Config& config = runner->model_->config();
  const Topology& topology = runner->model_->topology();
  if (options.replay_keep > 0) {
    if (topology.decoder_begin >= config.num_hidden_layers) {
      return fail(ErrorCode::kConflictingOptions,
                  "bounded replay needs decoder layers that share the last cache; this layout has "
                  "none");
    }
    if (options.replay_keep < config.sliding_window) {
      return fail(ErrorCode::kInvalidArgument,
                  "a replay of {} tokens is shorter than the window of {}", options.replay_keep,
                  config.sliding_window);
    }
  }
  int64_t& context = runner->options_.context;
  if (context > config.max_position_embeddings) {
    return fail(ErrorCode::kInvalidArgument, "a context of {} tokens exceeds the model's {}",
                context, config.max_position_embeddings);
  }
  if (context == 0) context = config.max_position_embeddings;

  CHECK_OK(runner->make_pool());
  if (device) {
    TRY(auto placed, PlacedWeights::create(runner->model_->weights(), *runner->backend_, period));
    runner->weights_ = std::make_unique<PlacedWeights>(std::move(placed));
    log_info("on the device:\n{}", runner->memory_table());
  }
  TRY(auto forward,
      Forward::create(
          *runner->model_, *runner->backend_, *runner->pool_,
          {.max_tokens = runner->options_.max_step_tokens,
           .replay_form = options.replay_form,
           .pager = runner->pager_.get(),
           .weights = runner->weights_ != nullptr ? &runner->weights_->weights() : nullptr}));
  runner->forward_ = std::make_unique<Forward>(std::move(forward));
  return runner;
}

// Besides weights and state: of the largest step and of its logits, those of drafts too.
int64_t ModelRunner::device_workspace(const StateLayout& layout) const {
  const Config& config = model_->config();
  const int64_t block = config.dspark_block_size;
  const int64_t tokens = std::max(options_.max_step_tokens, block + 1);
  const int64_t rows =
      std::min(tokens, options_.sequences * (1 + block)) + options_.sequences * block;
  return Workspace::size_of(*backend_, config, layout, tokens) +
         backend_->scratch_memory(config, tokens) +
         rows * config.vocab_size * static_cast<int64_t>(sizeof(float));
}

// Divides the memory for state and allocates it.
Status ModelRunner::make_pool() {
  TRY(auto layout, StateLayout::build(model_->config(), model_->topology(), *backend_));
  const int64_t whole = options_.sequences * layout.blocks_for(options_.context);
  int64_t blocks = options_.pool_blocks > 0 ? options_.pool_blocks : whole;
  int64_t& slots = options_.sequences;
  // Every sequence saves windows at each boundary; four for each are the least worth having.
  const int64_t snapshot = WindowSnapshots(layout, {}).snapshot_bytes(kBlockTokens, true);
  const auto snapshots = [&] {
    return std::max(4 * slots * snapshot,
                    (slots * layout.slot_bytes + blocks * layout.block_bytes) / 16);
  };
  snapshot_bytes_ = snapshots();
  // Snapshots are kept on the host, which a device's memory has nothing to do with.
  const bool device = !backend_->host_memory();
  const int64_t shared_snapshots = device ? 0 : snapshot_bytes_;
  const int64_t weights =
      device ? PlacedWeights::size_of(model_->weights()) : model_->checkpoint().file_bytes();
  const int64_t free = backend_->free_memory();
  int64_t& step = options_.max_step_tokens;
  while (device && options_.least_step_tokens > 0 && step / 2 >= options_.least_step_tokens &&
         device_workspace(layout) > (free - weights) / 3) {
    step /= 2;
  }
  const int64_t workspace = device ? device_workspace(layout) : 0;
  const int64_t room = device ? free - weights - workspace : free;
  int64_t state = options_.state_bytes;
  if (state == RunnerOptions::kAutoState) {
    state = std::min(slots * layout.slot_bytes + whole * layout.block_bytes + shared_snapshots,
                     std::max<int64_t>(room, 0));
  }
  if (device) {
    const int64_t one =
        layout.slot_bytes + layout.blocks_for(options_.context) * layout.block_bytes;
    const bool by_blocks = options_.pool_blocks > 0 || state == 0;
    const int64_t least = by_blocks ? slots * layout.slot_bytes + blocks * layout.block_bytes : one;
    // Before anything large is allocated: an error in the middle would say less.
    if (std::max(state, least) > room) {
      return fail(ErrorCode::kOutOfMemory,
                  "the device has {} bytes free; weights take {}, steps of {} tokens and logits of "
                  "{} sequences about {}, state {}: lower the context, the sequences or the step",
                  free, weights, step, slots, workspace, std::max(state, least));
    }
  }
  if (state > 0 && options_.pool_blocks == 0) {
    const double share = static_cast<double>(snapshot_bytes_) / static_cast<double>(state);
    TRY(const MemoryPlan plan,
        MemoryPlan::make(layout,
                         {.budget_bytes = weights + workspace + state,
                          .context = options_.context,
                          .sequences = slots,
                          .weights_bytes = weights,
                          .workspace_bytes = workspace,
                          .snapshot_share = device ? 0.0 : std::clamp(share, 1.0 / 16, 1.0 / 4)}));
    slots = plan.slots;
    blocks = plan.blocks;
    snapshot_bytes_ = device ? snapshots() : plan.snapshot_bytes;
    memory_table_ = plan.table();
  } else {
    memory_table_ = fmt::format("{} slots of {} bytes, {} blocks of {} bytes\n", slots,
                                layout.slot_bytes, blocks, layout.block_bytes);
  }
  TRY(auto pool, StatePool::create(*backend_, std::move(layout), slots, blocks));
  pool_ = std::make_unique<StatePool>(std::move(pool));
  if (options_.fill_context > 0) fill_with_random_rows(*pool_, options_.fill_context);
  return {};
}

Status ModelRunner::prefill(Sequence& sequence, std::span<const int32_t> tokens, Logits logits,
                            const LogitsSink& each, int64_t chunk, bool replay) {
  const int64_t total = static_cast<int64_t>(tokens.size());
  if (total > options_.context) {
    return fail(ErrorCode::kContextLength,
                "a prompt of {} tokens does not fit the context of {}; shorten it or raise the "
                "context (the model's limit is {})",
                total, options_.context, model_->config().max_position_embeddings);
  }
  if (chunk <= 0) chunk = options_.max_step_tokens;
  chunk = std::min(chunk, forward_->max_tokens());
  if (replay && options_.replay_keep > 0 && sequence.length() == 0) {
    sequence.decoder_floor = std::max<int64_t>(0, total - options_.replay_keep);
  }
  while (sequence.length() < total) {
    const int64_t begin = sequence.length();
    const int64_t count = std::min(chunk, total - begin);
    const bool last = begin + count == total;
    const Logits wanted = logits == Logits::kLast && !last ? Logits::kNone : logits;
    const StepItem item{
        &sequence, tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(count)), wanted};
    TRY(const StepOutput output, forward_->run({&item, 1}));
    if (output.logits.count > 0 && each) {
      CHECK_OK(each(begin + count - output.logits.count, output.logits));
    }
  }
  return {};
}

}  // namespace tidemill
