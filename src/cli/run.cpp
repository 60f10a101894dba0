// tidemill run: one question, one answer.
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cli/answer_flags.h"
#include "cli/answer_printer.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/generate.h"
#include "cli/input.h"
#include "cli/output.h"
#include "text/json.h"
#include "text/prompt.h"

namespace tidemill::cli {
namespace {

struct RunOptions {
  EngineFlags engine;
  AnswerFlags answer;
  std::string prompt;
  bool has_prompt = false;
  bool raw = false;
  bool json = false;
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

Result<Prompt> make_prompt(const RunOptions& options, std::string text) {
  if (options.raw) {
    Prompt prompt;
    prompt.pieces.push_back({.text = std::move(text)});
    return prompt;
  }
  TRY(const auto directory, options.engine.directory());
  Conversation conversation = options.answer.conversation(directory);
  conversation.messages.push_back({.role = Role::kUser, .content = {{.text = std::move(text)}}});
  return render_prompt(conversation);
}

double rate(int64_t count, double seconds) {
  return seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

Json to_json(const Generation& generation, const AnswerPrinter& answer, const ModelRunner& engine,
             double load_seconds, uint64_t seed) {
  const auto tokens = static_cast<int64_t>(generation.ids.size());
  Json json;
  json["text"] = answer.content();
  json["reasoning"] = answer.reasoning();
  json["ids"] = generation.ids;
  json["finish_reason"] = to_string(generation.finish);
  json["seed"] = seed;
  json["usage"] = {{"prompt_tokens", generation.prompt_tokens},
                   {"completion_tokens", tokens},
                   {"total_tokens", generation.prompt_tokens + tokens}};
  // The prefill ends with the first token of the answer; decoding gives the others.
  json["timings"] = {
      {"load_seconds", load_seconds},
      {"prefill_seconds", generation.prefill_seconds},
      {"decode_seconds", generation.decode_seconds},
      {"prefill_tokens_per_second", rate(generation.prompt_tokens, generation.prefill_seconds)},
      {"decode_tokens_per_second", rate(tokens - 1, generation.decode_seconds)},
      {"threads", engine.threads()},
  };
  json["drafts"] = {{"steps", generation.steps},
                    {"proposed", generation.proposed},
                    {"accepted", generation.accepted}};
  return json;
}

Status run(const RunOptions& options) {
  TRY(std::string text, prompt_text(options));
  if (text.empty()) return fail(ErrorCode::kInvalidArgument, "the prompt is empty");
  const Clock::time_point begin = Clock::now();
  TRY(const auto engine, options.engine.load());
  const double load_seconds = seconds_since(begin);
  const Model& model = engine->model();
  TRY(const GenerateOptions generate, options.answer.generate_options(model));
  TRY(const Prompt prompt, make_prompt(options, std::move(text)));
  TRY(std::vector<int32_t> ids, encode_prompt(prompt, model.tokenizer()));
  if (options.raw) ids.insert(ids.begin(), model.config().bos_token_id);

  AnswerPrinter printer(model.tokenizer(), prompt, !options.json);
  Generator generator(*engine);
  TRY(const Generation generation,
      generator.generate(ids, generate, [&](int32_t id) { printer.push(id); }));
  CHECK_OK(printer.finish());
  if (!options.json) return {};
  return write_stdout(
      python_json(to_json(generation, printer, *engine, load_seconds, generate.sampling.seed)) +
      "\n");
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("run", "Answer one prompt");
  const auto options = std::make_shared<RunOptions>();
  command->add_option("PROMPT", options->prompt, "The prompt (default: stdin)");
  command->add_flag("--json", options->json, "Text, ids, usage, timings and drafts as JSON");
  command->add_flag("--raw", options->raw, "No chat format: continue the text itself");
  options->engine.add_to(*command);
  options->answer.add_to(*command);
  command->callback([command, options, &action] {
    options->has_prompt = command->count("PROMPT") > 0;
    action = [options] { return run(*options); };
  });
}

}  // namespace tidemill::cli
