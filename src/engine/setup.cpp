#include "engine/setup.h"

#include <algorithm>
#include <limits>

#include "engine/identity.h"
#include "engine/named_backends.h"
#include "engine/step_profile.h"

namespace tidemill {
namespace {

constexpr int64_t kMinChunk = 16;  // SchedulerOptions::min_chunk

// What is computed at a time unless someone says otherwise. A device reads nearly all experts in a
// step whatever its size, and needs thousands of tokens to be busy with them.
struct Sizes {
  int64_t sequences;
  int64_t step;
};
constexpr Sizes kHostSizes{16, 512};
constexpr Sizes kDeviceSizes{64, 8192};

// Every running request has its token in a step, and prefill its smallest chunks.
int64_t least_step(const Options& options) { return options.sequences + 2 * kMinChunk; }

Status in_range(int64_t value, int64_t low, int64_t high, std::string_view name) {
  if (value >= low && value <= high) return {};
  return fail(ErrorCode::kInvalidArgument, "{} is {}; it must be between {} and {}", name, value,
              low, high);
}

Status check(const Options& options) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 4;
  CHECK_OK(in_range(options.sequences, 0, 65536, "sequences"));
  CHECK_OK(in_range(options.max_step_tokens, 0, 65536, "max_step_tokens"));
  CHECK_OK(in_range(options.alias_bytes, 0, kMost, "alias_bytes"));
  CHECK_OK(in_range(options.fill_context, 0, kMaxContext, "fill_context"));
  CHECK_OK(in_range(options.memory_bytes, 0, kMost, "memory_bytes"));
  CHECK_OK(in_range(options.state_bytes, 0, kMost, "state_bytes"));
  CHECK_OK(in_range(options.suspend_bytes, 0, kMost, "suspend_bytes"));
  CHECK_OK(in_range(options.max_waiting, 1, int64_t{1} << 24, "max_waiting"));
  CHECK_OK(in_range(options.max_tenant_waiting, 1, int64_t{1} << 24, "max_tenant_waiting"));
  CHECK_OK(in_range(options.grammar_cache_bytes, 0, kMost, "grammar_cache_bytes"));
  CHECK_OK(in_range(options.grammar_source_bytes, 1, int64_t{1} << 30, "grammar_source_bytes"));
  CHECK_OK(in_range(options.grammar_depth, 1, 1000, "grammar_depth"));
  CHECK_OK(in_range(options.grammar_compile_ms, 1, 3'600'000, "grammar_compile_ms"));
  CHECK_OK(in_range(options.grammar_threads, 1, GrammarPool::kMaxThreads, "grammar_threads"));
  if (!(options.window_lifetime_s > 0 && options.window_lifetime_s <= 1e9)) {
    return fail(ErrorCode::kInvalidArgument, "window_lifetime_s is {}; it must be above 0",
                options.window_lifetime_s);
  }
  if (options.max_step_tokens < least_step(options)) {
    return fail(
        ErrorCode::kInvalidArgument,
        "max_step_tokens is {}; with {} sequences it must be at least {} (0: chosen for you)",
        options.max_step_tokens, options.sequences, least_step(options));
  }
  if (options.state_bytes > 0 && options.pool_blocks > 0) {
    return fail(ErrorCode::kConflictingOptions,
                "state_bytes and pool_blocks both size the pool; give one of them");
  }
  if (options.encoder_replay && options.replay_keep == 0) {
    return fail(ErrorCode::kConflictingOptions,
                "encoder_replay restores no decoder windows and needs replay_keep");
  }
  if (options.encoder_replay && !options.prefix_cache) {
    return fail(ErrorCode::kConflictingOptions,
                "encoder_replay is for hits of the prefix cache, which prefix_cache turns off");
  }
  if (options.fill_context > 0 && (options.prefix_cache || options.replay_keep > 0)) {
    return fail(ErrorCode::kConflictingOptions,
                "fill_context is state that nobody computed; it excludes {}",
                options.prefix_cache ? "prefix_cache, which would share it" : "replay_keep");
  }
  return {};
}

Result<Verification> parse_verification(std::string_view text) {
  if (text == "keyed") return Verification::kKeyed;
  if (text == "rejection") return Verification::kRejection;
  return fail(ErrorCode::kInvalidArgument,
              "verification cannot be \"{:.40}\"; one of keyed, rejection", text);
}

// The options' temperatures, else the checkpoint's, else 1.
Result<DraftTemperatures> draft_temperatures(const Options& options,
                                             const GenerationConfig& generation,
                                             int32_t draft_length) {
  const bool given = !options.confidence_temperatures.empty();
  const std::vector<float>& chosen =
      given ? options.confidence_temperatures : generation.dspark_confidence_temperatures;
  std::vector<double> values(chosen.begin(), chosen.end());
  if (values.empty()) values = {1.0};
  auto temperatures = DraftTemperatures::create(values, draft_length);
  if (temperatures || given) return temperatures;
  return fail(ErrorCode::kConfig, "generation_config.json: dspark_confidence_temperatures: {}",
              temperatures.error().message);
}

}  // namespace

Options with_sizes(Options options) {
  const Sizes& sizes = on_device(options.backend) ? kDeviceSizes : kHostSizes;
  if (options.sequences == 0) {
    options.sequences = sizes.sequences;
    if (options.max_step_tokens > 0) {
      options.sequences =
          std::clamp<int64_t>(options.max_step_tokens - 2 * kMinChunk, 1, options.sequences);
    }
  }
  if (options.max_step_tokens == 0) {
    options.max_step_tokens = std::max(sizes.step, least_step(options));
  }
  return options;
}

Result<std::unique_ptr<ModelRunner>> load_runner(const Options& given,
                                                 std::function<void(double)> progress) {
  const Options options = with_sizes(given);
  CHECK_OK(check(options));
  TRY(const HugePages huge_pages, parse_huge_pages(options.huge_pages));
  return ModelRunner::load(
      options.model,
      {.backend = options.backend,
       .threads = options.threads,
       .alias_bytes = options.alias_bytes,
       .memory_bytes = options.memory_bytes,
       .huge_pages = huge_pages,
       .context = options.context,
       .fill_context = options.fill_context,
       .sequences = options.sequences,
       .state_bytes = options.state_bytes > 0   ? options.state_bytes
                      : options.pool_blocks > 0 ? 0
                                                : RunnerOptions::kAutoState,
       .pool_blocks = options.pool_blocks,
       .max_step_tokens = options.max_step_tokens,
       .least_step_tokens =
           given.max_step_tokens == 0 ? std::max(kHostSizes.step, least_step(options)) : 0,
       .replay_keep = options.replay_keep},
      std::move(progress));
}

Result<LoopOptions> loop_options(const Options& given, ModelRunner& runner) {
  const Options options = with_sizes(given);
  const Config& config = runner.model().config();
  const int64_t block = config.num_nextn_predict_layers > 0 ? config.dspark_block_size : 0;
  TRY(const DraftPolicy drafts, parse_draft_policy(options.drafts, static_cast<int32_t>(block)));
  if (block == 0 && drafts.learns()) {
    return fail(ErrorCode::kConflictingOptions,
                "drafts is \"{}\", but this checkpoint has no drafter; use off", options.drafts);
  }
  TRY(const Verification verification, parse_verification(options.verification));
  TRY(DraftTemperatures temperatures,
      draft_temperatures(options, runner.model().generation(),
                         static_cast<int32_t>(std::max<int64_t>(block, 1))));
  TRY(std::string identity, checkpoint_digest(runner.model(), options.model));

  TRY(CostCurve cost, drafts.learns() ? profile_steps(runner) : CostCurve::create({{1, 1.0}}, 0));
  LoopOptions loop{.drafts = drafts,
                   .draft_cost = std::move(cost),
                   .temperatures = std::move(temperatures),
                   .verification = verification,
                   .prefix_cache = options.prefix_cache,
                   .fill_context = options.fill_context,
                   .replay_keep = options.replay_keep,
                   .encoder_replay = options.encoder_replay,
                   .suspend_bytes = options.suspend_bytes,
                   .identity = std::move(identity)};
  loop.scheduler.max_sequences = options.sequences;
  loop.scheduler.step_ms = options.step_ms;
  loop.scheduler.max_waiting = options.max_waiting;
  loop.scheduler.max_tenant_waiting = options.max_tenant_waiting;
  loop.scheduler.min_chunk = kMinChunk;
  if (options.suspend_bytes > 0) loop.scheduler.snapshot_from = kBlockTokens;
  loop.windows.budget_bytes = runner.snapshot_bytes();
  loop.windows.lifetime = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(options.window_lifetime_s));
  return loop;
}

ModelInfo model_info(ModelRunner& runner, const StepLoop& loop) {
  const Config& config = runner.model().config();
  const GenerationConfig& generation = runner.model().generation();
  ModelInfo info{.vocabulary = config.vocab_size,
                 .context = runner.options().context,
                 .max_drafts = config.num_nextn_predict_layers > 0 ? config.dspark_block_size : 0,
                 .prefill_chunk = runner.forward().max_tokens(),
                 .threads = runner.threads(),
                 .end_tokens = loop.end_tokens(),
                 .weight_bytes = runner.model().checkpoint().file_bytes(),
                 .weights_held = how_held(runner.model().checkpoint()),
                 .memory_table = runner.memory_table(),
                 .cache_rule = loop.cache_rule()};
  info.defaults.temperature = generation.do_sample ? generation.temperature : 0.0f;
  info.defaults.top_p = generation.top_p;
  info.defaults.top_k = static_cast<int32_t>(generation.top_k);
  return info;
}

}  // namespace tidemill
