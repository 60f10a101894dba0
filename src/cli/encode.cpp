// tidemill encode: a chat request to its prompt and token ids.
#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/input.h"
#include "cli/model_directory.h"
#include "cli/output.h"
#include "text/json.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

namespace tidemill::cli {
namespace {

Status encode(const std::string& model) {
  TRY(const auto directory, find_model(model));
  TRY(const Tokenizer tokenizer, Tokenizer::load(directory / "tokenizer.json"));
  TRY(const std::string text, read_input("-"));
  TRY(const Json request, parse_json(text));
  TRY(const Conversation conversation, parse_chat_request(request));
  TRY(const Prompt prompt, render_prompt(conversation));
  TRY(const auto ids, encode_prompt(prompt, tokenizer));
  Json answer;
  answer["prompt"] = prompt.text();
  answer["ids"] = ids;
  return write_stdout(python_json(answer) + "\n");
}

}  // namespace

void add_encode(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand(
      "encode", "Read a chat request (JSON) on stdin, print {\"prompt\": ..., \"ids\": [...]}");
  const auto model = std::make_shared<std::string>();
  command->add_option("--model", *model, "Directory with tokenizer.json; no weights are read");
  command->callback([model, &action] { action = [model] { return encode(*model); }; });
}

}  // namespace tidemill::cli
