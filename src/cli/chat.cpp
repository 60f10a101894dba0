// tidemill chat: a conversation on the terminal, or from a pipe with one message per line.
#include <fmt/core.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/escape.h"
#include "cli/answer.h"
#include "cli/answer_flags.h"
#include "cli/answer_printer.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/interrupt.h"
#include "cli/line_editor.h"
#include "cli/message_lines.h"
#include "serve/generation.h"
#include "text/prompt.h"
#include "text/tokenizer.h"

namespace tidemill::cli {
namespace {

constexpr const char* kHelp =
    "Ctrl-C stops an answer, Ctrl-D or /exit ends. A trailing \\ or \"\"\" makes several lines of "
    "a "
    "message.\n/new starts over, /help shows this.\n";

struct ChatOptions {
  EngineFlags engine;
  AnswerFlags answer;
};

class Chat {
 public:
  // `start` is what a conversation begins with: the system message and the mode.
  // `request`: all but the prompt.
  Chat(Engine& engine, const Tokenizer& tokenizer, Conversation start, Request request)
      : engine_(engine),
        tokenizer_(tokenizer),
        start_(std::move(start)),
        conversation_(start_),
        request_(std::move(request)) {}

  Status talk() {
    if (editor_.interactive()) fmt::print(stderr, "{}", kHelp);
    for (std::string line;;) {
      const LineEditor::Event event = editor_.read(lines_.open() ? "... " : "> ", line);
      if (event == LineEditor::Event::kInterrupt) {
        lines_.cancel();
        continue;
      }
      const bool end = event == LineEditor::Event::kEnd;
      const auto message = end ? lines_.finish() : lines_.push(line);
      if (message && *message == "/exit") return {};
      if (message && !message->empty()) CHECK_OK(take(*message));
      if (end) return {};
    }
  }

 private:
  Status take(const std::string& message) {
    if (message == "/new") {
      conversation_ = start_;
    } else if (message == "/help") {
      fmt::print(stderr, "{}", kHelp);
    } else {
      return answer(message);
    }
    return {};
  }

  // What the model cannot take (a message longer than the context) is said and forgotten; the
  // conversation goes on.
  Status answer(const std::string& message) {
    conversation_.messages.push_back({.role = Role::kUser, .content = {{.text = message}}});
    interrupt_.clear();
    Status printed;
    const Result<Message> said = [&] {
      const InterruptElsewhere interrupt;
      return generate(printed);
    }();
    CHECK_OK(std::move(printed));
    if (said) {
      conversation_.messages.push_back(*said);
      return {};
    }
    conversation_.messages.pop_back();
    if (!editor_.interactive()) return tl::unexpected(said.error());
    fmt::print(stderr, "tidemill: {}\n", escape_control(said.error().message));
    return {};
  }

  // What the conversation has so far is found in the engine's prefix cache.
  Result<Message> generate(Status& printed) {
    TRY(const Prompt prompt, render_prompt(conversation_));
    TRY(request_.prompt, encode_prompt(prompt, tokenizer_));
    request_.start = answer_start(prompt);
    AnswerPrinter printer(prompt, true);
    Request request = request_;
    fit_into_context(request, engine_.info());
    TRY(const auto answers, ask(engine_, std::move(request), interrupt_.flag(),
                                [&](const Event& event) { printer.push(event.text); }));
    const Answer& said = answers[0];
    if (said.ids.empty()) CHECK_OK(status_of(said));
    printed = printer.finish();
    CHECK_OK(status_of(said));
    ++request_.sampling.seed;  // the same question again may get another answer
    if (said.finish == FinishReason::kCancelled) fmt::print(stderr, "(stopped)\n");
    if (said.finish == FinishReason::kLength) fmt::print(stderr, "(cut: --max-tokens)\n");
    return Message{.role = Role::kAssistant,
                   .content = {{.text = printer.content()}},
                   .reasoning = printer.reasoning()};
  }

  Engine& engine_;
  const Tokenizer& tokenizer_;
  const Conversation start_;
  Conversation conversation_;
  Request request_;
  InterruptFlag interrupt_;
  LineEditor editor_;
  MessageLines lines_;
};

Status chat(const ChatOptions& options) {
  TRY(const auto directory, options.engine.directory());
  TRY(const Tokenizer tokenizer, Tokenizer::load(directory / "tokenizer.json"));
  TRY(const auto engine, options.engine.open(options.answer.options(1)));
  return Chat(*engine, tokenizer, options.answer.conversation(directory),
              options.answer.request(engine->info()))
      .talk();
}

}  // namespace

void add_chat(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("chat", "A conversation; Ctrl-C stops the answer");
  const auto options = std::make_shared<ChatOptions>();
  options->engine.add_engine_to(*command);
  options->answer.add_to(*command);
  command->callback([options, &action] { action = [options] { return chat(*options); }; });
}

}  // namespace tidemill::cli
