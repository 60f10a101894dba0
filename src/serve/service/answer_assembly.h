// The answer to one body: the events of its engine requests, told apart by choice, parsed, counted
// and handed to the protocol's sink.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serve/service/answer_sink.h"
#include "text/tokenizer.h"

namespace tidemill {

struct AssemblyOptions {
  Protocol protocol = Protocol::kChat;
  // Of a conversation; nothing of a completion is parsed.
  std::optional<OutputParserOptions> parser;
  std::vector<Tool> tools;
  AnswerStart start = AnswerStart::kContent;
  std::vector<std::string> echoes;  // completions: of each prompt, first in its text
  int64_t requests = 1;
  int64_t choices = 1;  // of each request
};

// Sums over all choices that the engine started, whatever became of them. What never started costs
// nothing, and what the engine made behind the end of an answer does not either.
struct AnswerCost {
  std::vector<int64_t> drafted;
  std::vector<int64_t> accepted;
  int64_t preemptions = 0;
  // Answers whose reasoning names a tool and that call none: when this grows with some option, the
  // option garbles calls.
  int64_t unkept_calls = 0;
  double queued_ms = -1;  // until the first choice started
};

// Not thread safe. begin() once, then push() for each event, in their order. What goes to the
// client is appended to `out`.
class AnswerAssembly {
 public:
  // The tokenizer must outlive it.
  AnswerAssembly(AssemblyOptions options, const Tokenizer& tokenizer,
                 std::unique_ptr<AnswerSink> sink);

  void begin(std::string& out) { sink_->begin(out); }
  void push(int64_t request, const Event& event, std::string& out);
  // After the last event of all requests, unless failure().
  void finish(std::string& out) { sink_->finish(usage(), out); }
  void fail(const HttpError& error, std::string& out) { sink_->fail(error, out); }
  void keep_alive(std::string& out) { sink_->keep_alive(out); }
  int64_t choices() const { return options_.requests * options_.choices; }
  // Of a choice among all.
  int64_t index(int64_t request, int64_t choice) const {
    return request * options_.choices + choice;
  }

  // All choices of the request have all they can say: the engine should stop making more.
  bool is_complete(int64_t request) const;
  // The first choice that the engine refused or broke off.
  const std::optional<Error>& failure() const { return failure_; }
  // Has the engine computed anything of it, as far as its events tell?
  bool has_started() const { return has_started_; }
  // Of the first choice, once it has ended.
  AnswerEnd end() const { return end_; }

  // Of the choices that the engine started.
  AnswerUsage usage() const;
  const AnswerCost& cost() const { return cost_; }

 private:
  struct Choice {
    std::optional<AnswerReader> reader;
    ReasoningCount reasoning;
    int64_t tokens = 0;   // up to the one that completed the answer
    std::string thought;  // with tools: the end of the reasoning so far
    bool names_tool = false;
    bool calls_tool = false;
    bool ended = false;
  };

  void look_for_tools(Choice& choice, const std::vector<OutputDelta>& deltas) const;
  std::vector<TokenText> texts(const std::vector<LogProbabilities>& logprobs) const;
  void end_choice(int64_t request, int64_t index, const Event& event, std::string& out);

  AssemblyOptions options_;
  const Tokenizer& tokenizer_;
  std::unique_ptr<AnswerSink> sink_;
  std::vector<Choice> choices_;      // of request 0, of request 1, ..
  std::vector<AnswerUsage> usages_;  // of each request
  std::vector<bool> echoed_;         // of each choice
  AnswerCost cost_;
  std::optional<Error> failure_;
  bool has_started_ = false;
  AnswerEnd end_ = AnswerEnd::kFailed;
};

}  // namespace tidemill
