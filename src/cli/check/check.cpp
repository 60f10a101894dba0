// tidemill check: does this build, on this machine and model, keep its own promises?
#include <algorithm>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/check/replay.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/output.h"
#include "cli/token_inputs.h"
#include "sample/sampler.h"

namespace tidemill::cli {
namespace {

struct CheckReplayOptions {
  EngineFlags engine;
  std::string tokens;
  int level = 0;  // 0: 2 where weights are
  bool json = false;
};

bool has_weights(const std::filesystem::path& directory) {
  std::error_code error;
  return std::filesystem::exists(directory / "model.safetensors.index.json", error) ||
         std::filesystem::exists(directory / "model.safetensors", error);
}

// Text of the model's own, so that the approximation is measured on what it is good at.
Result<std::vector<int32_t>> write_text(ModelRunner& runner, int64_t count) {
  std::vector<int32_t> ids = {runner.model().config().bos_token_id};
  Sampler sampler(runner.model().config().vocab_size);
  const SamplingParams sampling{.seed = 1};
  TRY(Sequence sequence, runner.pool().acquire());
  const auto draw = [&](int64_t position, const Rows& logits) -> Status {
    const std::span<const float> row(logits.f32(logits.count - 1),
                                     static_cast<size_t>(logits.width));
    TRY(const int32_t id, sampler.sample(row, sampling, {}, position + 1));
    ids.push_back(id);
    return {};
  };
  Status status;
  while (status && static_cast<int64_t>(ids.size()) < count) {
    const std::vector<int32_t> known = ids;
    status = runner.prefill(sequence, known, Logits::kLast, draw, 0, false);
  }
  runner.pool().release(sequence);
  if (!status) return tl::unexpected(std::move(status).error());
  return ids;
}

// The shortest prompt and a longer one with a longer hit, odd and even, each with the tokens after
// it.
Result<std::vector<std::vector<int32_t>>> own_inputs(ModelRunner& runner, int64_t smallest) {
  const int64_t longest = smallest + kBlockTokens + 77;
  TRY(const auto text, write_text(runner, longest + kReplayDecode));
  std::vector<std::vector<int32_t>> inputs;
  for (const int64_t prompt : {smallest, longest}) {
    inputs.emplace_back(text.begin(), text.begin() + prompt + kReplayDecode);
  }
  return inputs;
}

Result<CheckReport> check_values(const CheckReplayOptions& options) {
  TRY(const auto runner, options.engine.load());
  const Model& model = runner->model();
  const StateLayout& layout = runner->pool().layout();
  if (model.topology().decoder_begin >= model.config().num_hidden_layers) {
    return fail(ErrorCode::kConflictingOptions,
                "bounded replay needs decoder layers that share the last cache; this layout has "
                "none (--level 1 checks the inputs alone)");
  }
  ReplayValues values;
  values.keep = std::max(options.engine.replay_keep, layout.recomputed_tail());
  const int64_t smallest = smallest_replayed_prompt(layout, values.keep);
  if (options.tokens.empty()) {
    TRY(values.ids, own_inputs(*runner, smallest));
  } else {
    TRY(values.ids, read_token_inputs(options.tokens, model.tokenizer(), model.config()));
  }
  for (const auto& ids : values.ids) {
    if (static_cast<int64_t>(ids.size()) < smallest + kReplayDecode) {
      return fail(ErrorCode::kRequest,
                  "{} tokens are too few: a hit that is replayed, {} tokens for the decoder and {} "
                  "after the prompt need {}",
                  ids.size(), values.keep, kReplayDecode, smallest + kReplayDecode);
    }
  }
  return check_replay_values(*runner, values);
}

Status check_replay(const CheckReplayOptions& options) {
  TRY(const auto directory, options.engine.directory());
  const int level = options.level > 0 ? options.level : has_weights(directory) ? 2 : 1;
  TRY(const Config config, Config::load(directory));
  std::vector<CheckReport> reports;
  TRY(auto inputs, check_replay_inputs(config));
  reports.push_back(std::move(inputs));
  if (!options.json) CHECK_OK(stream_stdout(reports.back().to_text()));
  if (level == 2) {
    TRY(auto values, check_values(options));
    reports.push_back(std::move(values));
    if (!options.json) CHECK_OK(stream_stdout(reports.back().to_text()));
  }
  const bool ok = std::all_of(reports.begin(), reports.end(), [](const auto& r) { return r.ok(); });
  if (options.json) {
    Json json;
    json["levels"] = Json::array();
    for (const CheckReport& report : reports) json["levels"].push_back(report.to_json());
    json["ok"] = ok;
    CHECK_OK(write_stdout(json.dump() + "\n"));
  } else if (ok) {
    CHECK_OK(write_stdout("OK\n"));
  }
  if (ok) return {};
  return fail(ErrorCode::kInternal,
              "the two forms of bounded replay differ, or not what they should be; run without "
              "--replay and report the lines above");
}

}  // namespace

void add_check(CLI::App& app, Action& action) {
  auto* check = app.add_subcommand("check", "Checks of this build on this machine and model");
  check->require_subcommand(1);
  auto* command = check->add_subcommand("replay",
                                        "Bounded replay: its two forms are equal, cached prefixes "
                                        "stay as they are, and how far it is "
                                        "from the exact pass");
  const auto options = std::make_shared<CheckReplayOptions>();
  options->engine.add_to(*command);
  command
      ->add_option("--level", options->level,
                   "1: inputs of steps, from config.json alone; 2: also every logit, with the "
                   "weights (default: 2 where there are any)")
      ->check(CLI::IsMember({1, 2}));
  command->add_option("--tokens", options->tokens,
                      "Texts for level 2, as for score (default: the model writes its own)");
  command->add_flag("--json", options->json, "The report as JSON");
  command->callback([options, &action] { action = [options] { return check_replay(*options); }; });
}

}  // namespace tidemill::cli
