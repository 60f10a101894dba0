// tidemill score: teacher-forced log-probabilities and perplexity, and the logits themselves.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/npy.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/output.h"
#include "cli/token_inputs.h"
#include "sample/log_probabilities.h"
#include "text/json.h"

namespace tidemill::cli {
namespace {

struct ScoreOptions {
  EngineFlags engine;
  std::string tokens;
  std::string logits;
  int64_t prompt = 0;
  bool decode = false;
};

// Sum over the tokens that count: those after the prompt whose logits exist. A
// beginning-of-sequence token starts a document and is nothing to predict.
struct Score {
  int64_t scored = 0;
  double nll = 0;
};

class Scorer {
 public:
  Scorer(ModelRunner& engine, const ScoreOptions& options, std::optional<NpyWriter>& logits)
      : engine_(engine), options_(options), logits_(logits) {}

  Result<Score> score(std::span<const int32_t> ids) {
    TRY(Sequence sequence, engine_.pool().acquire());
    auto result = score_in(sequence, ids);
    engine_.pool().release(sequence);
    return result;
  }

 private:
  Result<Score> score_in(Sequence& sequence, std::span<const int32_t> ids) {
    Score score;
    const auto take = [&](int64_t begin, const Rows& rows) -> Status {
      for (int64_t row = 0; row < rows.count; ++row) {
        CHECK_OK(take_row(rows, row, begin + row, ids, score));
      }
      return {};
    };
    const int64_t chunk = options_.decode ? 1 : 0;
    if (options_.prompt > 0) {  // the prompt first: replay counts from its end
      const size_t prompt = std::min(ids.size(), static_cast<size_t>(options_.prompt));
      CHECK_OK(engine_.prefill(sequence, ids.first(prompt), Logits::kAll, take, chunk));
    }
    CHECK_OK(engine_.prefill(sequence, ids, Logits::kAll, take, chunk));
    return score;
  }

  Status take_row(const Rows& rows, int64_t row, int64_t position, std::span<const int32_t> ids,
                  Score& score) {
    const std::span<const float> logits(rows.f32(row), static_cast<size_t>(rows.width));
    if (logits_) CHECK_OK(logits_->append(logits));
    const auto next = static_cast<size_t>(position) + 1;
    const bool counts = next < ids.size() && ids[next] != engine_.model().config().bos_token_id &&
                        static_cast<int64_t>(next) >= options_.prompt;
    if (!counts) return {};
    CHECK_OK(log_probabilities(logits, ids[next], 0, position, probabilities_));
    score.nll -= probabilities_.chosen.logprob;
    ++score.scored;
    return {};
  }

  ModelRunner& engine_;
  const ScoreOptions& options_;
  std::optional<NpyWriter>& logits_;
  LogProbabilities probabilities_;
};

std::string to_line(int64_t tokens, const Score& score, double seconds) {
  Json line;
  line["tokens"] = tokens;
  line["scored"] = score.scored;
  line["nll"] = nullptr;  // mean over the scored tokens; nothing to average for a single token
  line["ppl"] = nullptr;
  if (score.scored > 0) {
    const double mean = score.nll / static_cast<double>(score.scored);
    line["nll"] = mean;
    line["ppl"] = std::exp(mean);
  }
  line["seconds"] = seconds;
  return line.dump() + "\n";
}

Status score(const ScoreOptions& options) {
  TRY(const auto engine, options.engine.load());
  const Model& model = engine->model();
  TRY(const auto inputs, read_token_inputs(options.tokens, model.tokenizer(), model.config()));
  std::optional<NpyWriter> logits;
  if (!options.logits.empty()) {
    TRY(logits, NpyWriter::create(options.logits, model.config().vocab_size));
  }
  Scorer scorer(*engine, options, logits);
  for (const auto& ids : inputs) {
    const Clock::time_point begin = Clock::now();
    TRY(const Score result, scorer.score(ids));
    const auto tokens = static_cast<int64_t>(ids.size());
    CHECK_OK(stream_stdout(to_line(tokens, result, seconds_since(begin))));
  }
  if (logits) return logits->finish();
  return {};
}

}  // namespace

void add_score(CLI::App& app, Action& action) {
  auto* command =
      app.add_subcommand("score", "Log-probability and perplexity of given tokens, as JSON lines");
  const auto options = std::make_shared<ScoreOptions>();
  options->engine.add_to(*command);
  command
      ->add_option(
          "--tokens", options->tokens,
          "JSON array of ids, or JSON lines {\"tokens\": [...]} / {\"text\": \"...\"}; - is "
          "stdin")
      ->required();
  command->add_option("--logits", options->logits,
                      "Write the logits of every position, float32 [positions, vocab] .npy");
  auto* decode = command->add_flag("--decode", options->decode, "One token at a time");
  command->get_option("--chunk")->excludes(decode);
  command
      ->add_option("--prompt", options->prompt,
                   "Score only what follows the first N tokens (and replay within these)")
      ->check(CLI::Range(int64_t{1}, kMaxContext));
  command->callback([options, &action] { action = [options] { return score(*options); }; });
}

}  // namespace tidemill::cli
