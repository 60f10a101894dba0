// tidemill run: one question, one answer, or several.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cli/answer.h"
#include "cli/answer_flags.h"
#include "cli/answer_printer.h"
#include "cli/command.h"
#include "cli/constraint_flags.h"
#include "cli/engine_flags.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "model/config.h"
#include "serve/generation.h"
#include "text/json.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

namespace tidemill::cli {
namespace {

constexpr int64_t kMostAtOnce = 16;  // choices: others wait for their turn

struct RunOptions {
  EngineFlags engine;
  AnswerFlags answer;
  ConstraintFlags constraint;
  std::string prompt;
  bool has_prompt = false;
  bool has_max_tokens = false;
  bool raw = false;
  bool json = false;
  int64_t n = 1;
  double timeout_seconds = INFINITY;
};

Result<std::string> prompt_text(const RunOptions& options) {
  if (options.has_prompt) return options.prompt;
  if (::isatty(STDIN_FILENO) == 1) {
    return fail(ErrorCode::kInvalidArgument,
                "no PROMPT, and none on stdin; for a conversation use tidemill chat");
  }
  TRY(std::string text, read_input("-"));
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

Result<Prompt> make_prompt(const RunOptions& options, const std::filesystem::path& directory) {
  TRY(std::string text, prompt_text(options));
  if (text.empty()) return fail(ErrorCode::kInvalidArgument, "the prompt is empty");
  if (options.raw) {
    Prompt prompt;
    prompt.pieces.push_back({.text = std::move(text)});
    return prompt;
  }
  Conversation conversation = options.answer.conversation(directory);
  conversation.messages.push_back({.role = Role::kUser, .content = {{.text = std::move(text)}}});
  return render_prompt(conversation);
}

Result<std::vector<int32_t>> prompt_ids(const RunOptions& options, const Prompt& prompt,
                                        const std::filesystem::path& directory) {
  TRY(const Tokenizer tokenizer, Tokenizer::load(directory / "tokenizer.json"));
  TRY(std::vector<int32_t> ids, encode_prompt(prompt, tokenizer));
  if (options.raw) {
    TRY(const Config config, Config::load(directory));
    ids.insert(ids.begin(), config.bos_token_id);
  }
  return ids;
}

double rate(int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

Json choice_json(const Answer& answer, const AnswerPrinter& text) {
  return {{"text", text.content()},
          {"reasoning", text.reasoning()},
          {"ids", answer.ids},
          {"finish_reason", to_string(answer.finish)}};
}

// The first choice stands at the top; all of them are "choices" when there are more.
Json to_json(const std::vector<Answer>& answers, const std::vector<AnswerPrinter>& texts,
             const ModelInfo& model, double load_seconds, uint64_t seed) {
  const Usage& usage = answers[0].usage;
  Json json = choice_json(answers[0], texts[0]);
  json["seed"] = seed;
  int64_t tokens = 0;
  for (const Answer& answer : answers) tokens += static_cast<int64_t>(answer.ids.size());
  json["usage"] = {{"prompt_tokens", usage.prompt_tokens},
                   {"completion_tokens", tokens},
                   {"total_tokens", usage.prompt_tokens + tokens},
                   {"cached_tokens", usage.cached_tokens}};
  // The prefill ends with the first token of the answer; decoding gives the others.
  const double prefill_seconds = (usage.first_token_ms - usage.queued_ms) / 1e3;
  const double decode_seconds = (usage.total_ms - usage.first_token_ms) / 1e3;
  json["timings"] = {
      {"load_seconds", load_seconds},
      {"queued_seconds", usage.queued_ms / 1e3},
      {"prefill_seconds", prefill_seconds},
      {"decode_seconds", decode_seconds},
      {"prefill_tokens_per_second",
       rate(usage.prompt_tokens - usage.cached_tokens, prefill_seconds)},
      {"decode_tokens_per_second", rate(usage.output_tokens - 1, decode_seconds)},
      {"threads", model.threads},
  };
  json["drafts"] = {
      {"steps", usage.steps}, {"proposed", usage.drafted}, {"accepted", usage.accepted}};
  if (answers.size() > 1) {
    json["choices"] = Json::array();
    for (size_t k = 0; k < answers.size(); ++k) {
      json["choices"].push_back(choice_json(answers[k], texts[k]));
    }
  }
  return json;
}

// Several answers one after the other, each under its number.
Status print_choices(std::vector<AnswerPrinter>& texts) {
  for (size_t k = 0; k < texts.size(); ++k) {
    CHECK_OK(write_stdout(fmt::format("[{}]\n{}\n", k + 1, texts[k].content())));
  }
  return {};
}

Status answer(const RunOptions& options, const std::atomic<bool>& interrupted) {
  TRY(const auto directory, options.engine.directory());
  TRY(const Prompt prompt, make_prompt(options, directory));
  TRY(auto constraint, options.constraint.constraint());
  TRY(auto ids, prompt_ids(options, prompt, directory));

  const Clock::time_point begin = Clock::now();
  TRY(const auto engine,
      options.engine.open(options.answer.options(std::min(options.n, kMostAtOnce))));
  const double load_seconds = seconds_since(begin);
  Request request = options.answer.request(engine->info());
  request.prompt = std::move(ids);
  if (!options.has_max_tokens) fit_into_context(request, engine->info());
  request.n = options.n;
  request.stop = options.constraint.stop;
  request.constraint = std::move(constraint);
  request.start = answer_start(prompt);
  request.timeout_ms = options.timeout_seconds * 1e3;
  const uint64_t seed = request.sampling.seed;

  const bool stream = !options.json && options.n == 1;
  std::vector<AnswerPrinter> texts;
  for (int64_t k = 0; k < options.n; ++k) texts.emplace_back(prompt, stream);
  TRY(const auto answers, ask(*engine, std::move(request), interrupted, [&](const Event& event) {
        texts[static_cast<size_t>(event.choice)].push(event.text);
      }));
  for (size_t k = 0; k < texts.size(); ++k) {
    if (answers[k].ids.empty()) CHECK_OK(status_of(answers[k]));
    CHECK_OK(texts[k].finish());
    CHECK_OK(status_of(answers[k]));
  }
  if (options.json) {
    return write_stdout(python_json(to_json(answers, texts, engine->info(), load_seconds, seed)) +
                        "\n");
  }
  return stream ? Status() : print_choices(texts);
}

// An interrupted answer is printed as far as it went; then the interrupt takes its course, so that
// a script that runs this stops too.
Status run(const RunOptions& options) {
  bool interrupted = false;
  {
    const InterruptFlag interrupt;
    CHECK_OK(answer(options, interrupt.flag()));
    interrupted = interrupt.flag();
  }
  if (!interrupted) return {};
  CHECK_OK(flush_stdout());
  ::raise(SIGINT);
  return fail(ErrorCode::kCancelled, "interrupted");
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("run", "Answer one prompt");
  const auto options = std::make_shared<RunOptions>();
  command->add_option("PROMPT", options->prompt, "The prompt (default: stdin)");
  command->add_flag("--json", options->json, "Text, ids, usage, timings and drafts as JSON");
  command->add_flag("--raw", options->raw, "No chat format: continue the text itself");
  command->add_option("--n", options->n, "Answers; answer k has the seed + k - 1")
      ->check(CLI::Range(int64_t{1}, Request::kMaxChoices))
      ->capture_default_str();
  command->add_option("--timeout", options->timeout_seconds, "Seconds for the whole answer")
      ->check(CLI::Range(1e-3, 1e9));
  options->engine.add_engine_to(*command);
  options->answer.add_to(*command);
  options->constraint.add_to(*command);
  command->callback([command, options, &action] {
    options->has_prompt = command->count("PROMPT") > 0;
    options->has_max_tokens = command->count("--max-tokens") > 0;
    action = [options] { return run(*options); };
  });
}

}  // namespace tidemill::cli
