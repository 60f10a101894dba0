#include "engine/model_runner.h"

#include <algorithm>
#include <limits>

namespace tidemill {
namespace {

Result<std::unique_ptr<Backend>> make_backend(const RunnerOptions& options, ThreadTeam& team) {
  if (options.backend == "reference") return make_reference_backend(team, options.rounding);
  const Rounding& r = options.rounding;
  if (!(r.bf16 && r.activations && r.cache)) {
    return fail(ErrorCode::kConflictingOptions,
                "backend '{}' keeps every rounding of the released model; other roundings need "
                "--backend reference",
                options.backend);
  }
  if (options.backend == "cpu") return make_cpu_backend(team);
  if (options.backend == "cpu-avx2") return make_cpu_backend(team, CpuIsa::kAvx2);
  if (options.backend == "cpu-avx512") return make_cpu_backend(team, CpuIsa::kAvx512);
  return fail(ErrorCode::kInvalidArgument,
              "backend '{}' is not one of cpu, cpu-avx2, cpu-avx512, reference", options.backend);
}

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
  CHECK_OK(in_range(options.context, 0, int64_t{1} << 30, "the context"));
  return in_range(options.replay_keep, 0, int64_t{1} << 30, "the replay length");
}

}  // namespace

Result<std::unique_ptr<ModelRunner>> ModelRunner::load(const std::filesystem::path& directory,
                                                       const RunnerOptions& options,
                                                       std::function<void(double)> progress) {
  CHECK_OK(check(options));
  std::unique_ptr<ModelRunner> engine(new ModelRunner);
  engine->options_ = options;
  const int threads = options.threads > 0 ? options.threads : ThreadTeam::available_threads();
  engine->team_ = std::make_unique<ThreadTeam>(threads);
  TRY(engine->backend_, make_backend(options, *engine->team_));
  TRY(engine->model_, Model::load(directory, {.progress = std::move(progress)}));

  const Config& config = engine->model_->config();
  const Topology& topology = engine->model_->topology();
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
  int64_t& context = engine->options_.context;
  if (context > config.max_position_embeddings) {
    return fail(ErrorCode::kInvalidArgument, "a context of {} tokens exceeds the model's {}",
                context, config.max_position_embeddings);
  }
  if (context == 0) context = config.max_position_embeddings;

  TRY(auto layout, StateLayout::build(config, topology, *engine->backend_));
  const int64_t blocks = options.pool_blocks > 0 ? options.pool_blocks
                                                 : options.sequences * layout.blocks_for(context);
  TRY(auto pool,
      StatePool::create(*engine->backend_, std::move(layout), options.sequences, blocks));
  engine->pool_ = std::make_unique<StatePool>(std::move(pool));
  TRY(auto forward,
      Forward::create(*engine->model_, *engine->backend_, *engine->pool_,
                      {.max_tokens = options.max_step_tokens, .replay_form = options.replay_form}));
  engine->forward_ = std::make_unique<Forward>(std::move(forward));
  return engine;
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
