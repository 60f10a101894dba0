#include "cli/engine_flags.h"

#include <map>

#include "base/thread_team.h"
#include "cli/model_directory.h"
#include "cli/progress.h"
#include "engine/named_backends.h"
#include "model/config.h"

namespace tidemill::cli {

CLI::Option* add_backend(CLI::App& command, std::string& backend) {
  return command
      .add_option(
          "--backend", backend,
          "cpu (the best of cpu-amx, cpu-avx512bf16, cpu-avx512 and cpu-avx2), cuda (a Hopper GPU; "
          "cuda-eager: without CUDA graphs, cuda-plain: slow kernels), or reference: slow, defines "
          "the numbers (reference-tiles: those of cpu-amx)")
      ->check(CLI::IsMember(backend_names()))
      ->capture_default_str();
}

CLI::Option* add_memory(CLI::App& command, int64_t& bytes) {
  return command
      .add_option("--memory", bytes,
                  "For weights, as 24GB: experts that do not fit stay in the file (default: all)")
      ->transform(CLI::AsSizeValue(true))
      ->type_name("SIZE");
}

CLI::Option* add_huge_pages(CLI::App& command, std::string& huge_pages) {
  return command
      .add_option("--huge-pages", huge_pages,
                  "Weights in huge pages instead of mapped files: on, off or auto (from 256 MiB to "
                  "half of the available memory)")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str();
}

void EngineFlags::add_engine_to(CLI::App& command) {
  command.add_option("--model", model, "Checkpoint directory (default: $TIDEMILL_MODEL, or mini)");
  add_backend(command, backend);
  command.add_option("--threads", threads, "Threads (default: the CPUs this process may use)")
      ->check(CLI::Range(1, ThreadTeam::kMaxThreads));
  command
      .add_option(
          "--chunk", chunk,
          "Tokens of a prompt that are processed at once (default: 512; where answers are computed "
          "on a GPU, 8192)")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}));
  command
      .add_option("--context", context, "Make room for so many tokens (default: the model's limit)")
      ->check(CLI::Range(int64_t{1}, kMaxContext));
  add_memory(command, memory_bytes);
  add_huge_pages(command, huge_pages);
  command
      .add_option(
          "--replay", replay_keep,
          "Approximate: decoder layers see only the last KEEP tokens of a prompt (128; off)")
      ->transform(CLI::Transformer(std::map<std::string, std::string>{{"off", "0"}}))
      ->type_name("off|KEEP");
}

void EngineFlags::add_to(CLI::App& command) {
  add_engine_to(command);
  command
      .add_option(
          "--rounding", rounding,
          "released, no-bf16, cache-only or none; all but released need --backend reference")
      ->check(CLI::IsMember({"released", "no-bf16", "cache-only", "none"}))
      ->capture_default_str();
}

Result<std::filesystem::path> EngineFlags::directory() const { return find_model(model); }

Result<std::unique_ptr<ModelRunner>> EngineFlags::load() const {
  TRY(const std::filesystem::path path, directory());
  RunnerOptions options;
  options.backend = backend;
  TRY(options.rounding, Rounding::parse(rounding));
  options.threads = threads;
  options.context = context;
  options.max_step_tokens = chunk > 0 ? chunk : kChunk;
  options.replay_keep = replay_keep;
  options.memory_bytes = memory_bytes;
  TRY(options.huge_pages, parse_huge_pages(huge_pages));
  ProgressBar bar("loading");
  return ModelRunner::load(path, options, [&](double fraction) { bar.update(fraction); });
}

Result<std::unique_ptr<Engine>> EngineFlags::open(Options options) const {
  TRY(options.model, directory());
  options.backend = backend;
  options.threads = threads;
  options.context = context;
  options.max_step_tokens = chunk;
  options.replay_keep = replay_keep;
  options.memory_bytes = memory_bytes;
  options.huge_pages = huge_pages;
  ProgressBar bar("loading");
  auto engine = Engine::open(options, [&](double fraction) { bar.update(fraction); });
  if (!engine && engine.error().message.starts_with("max_step_tokens")) {
    engine.error().message.insert(0, "--chunk: ");
  }
  return engine;
}

}  // namespace tidemill::cli
