#include "serve/service/answer_assembly.h"

#include <algorithm>
#include <utility>

#include "text/special_tokens.h"

namespace tidemill {
namespace {

void add(std::vector<int64_t>& to, const std::vector<int64_t>& from) {
  if (to.size() < from.size()) to.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) to[i] += from[i];
}

std::vector<int32_t> reasoning_ends(const Tokenizer& tokenizer, bool with_tools) {
  std::vector<int32_t> ends;
  if (const auto id = tokenizer.added_token(special::kThinkEnd)) ends.push_back(*id);
  if (!with_tools) return ends;
  if (const auto id = tokenizer.added_token(special::kDsml)) ends.push_back(*id);
  return ends;
}

}  // namespace

AnswerAssembly::AnswerAssembly(AssemblyOptions options, const Tokenizer& tokenizer,
                               std::unique_ptr<AnswerSink> sink)
    : options_(std::move(options)), tokenizer_(tokenizer), sink_(std::move(sink)) {
  const bool with_tools = options_.parser && options_.parser->tools_declared;
  const std::vector<int32_t> ends = reasoning_ends(tokenizer, with_tools);
  const int64_t count = options_.requests * options_.choices;
  for (int64_t i = 0; i < count; ++i) {
    Choice choice{.reader = {}, .reasoning = ReasoningCount(options_.start, ends)};
    if (options_.parser) choice.reader.emplace(*options_.parser, options_.tools);
    choices_.push_back(std::move(choice));
  }
  usages_.resize(static_cast<size_t>(options_.requests));
  echoed_.resize(static_cast<size_t>(count), options_.echoes.empty());
}

std::vector<TokenText> AnswerAssembly::texts(const std::vector<LogProbabilities>& logprobs) const {
  std::vector<TokenText> texts;
  texts.reserve(logprobs.size());
  for (const LogProbabilities& of : logprobs) {
    TokenText text{std::string(tokenizer_.bytes(of.chosen.token)), of.chosen.logprob, {}};
    for (const TokenLogprob& top : of.top) {
      text.top.emplace_back(tokenizer_.bytes(top.token), top.logprob);
    }
    texts.push_back(std::move(text));
  }
  return texts;
}

void AnswerAssembly::look_for_tools(Choice& choice, const std::vector<OutputDelta>& deltas) const {
  size_t longest = 0;
  for (const Tool& tool : options_.tools) longest = std::max(longest, tool.name.size());
  for (const OutputDelta& delta : deltas) {
    if (delta.kind == OutputDelta::Kind::kToolCallBegin) choice.calls_tool = true;
    if (delta.kind != OutputDelta::Kind::kReasoning || choice.names_tool) continue;
    choice.thought += delta.text;
    for (const Tool& tool : options_.tools) {
      if (choice.thought.find(tool.name) != std::string::npos) choice.names_tool = true;
    }
    if (choice.thought.size() > longest) choice.thought.erase(0, choice.thought.size() - longest);
  }
}

void AnswerAssembly::push(int64_t request, const Event& event, std::string& out) {
  const int64_t index = this->index(request, event.choice);
  Choice& choice = choices_[static_cast<size_t>(index)];
  if (choice.ended) return;
  has_started_ = has_started_ || !event.tokens.empty() || event.usage.queued_ms > 0;
  choice.reasoning.push(event.tokens);

  std::vector<OutputDelta> deltas;
  if (!echoed_[static_cast<size_t>(index)]) {
    echoed_[static_cast<size_t>(index)] = true;
    deltas.push_back(
        {OutputDelta::Kind::kContent, options_.echoes[static_cast<size_t>(request)], 0});
  }
  if (!choice.reader) {
    if (!event.text.empty()) deltas.push_back({OutputDelta::Kind::kContent, event.text, 0});
  } else if (!choice.reader->complete()) {
    choice.tokens += static_cast<int64_t>(event.tokens.size());
    deltas = choice.reader->push(event.text);
    if (options_.parser->tools_declared) look_for_tools(choice, deltas);
  }
  // Of tokens behind the end of the answer nothing is told.
  const bool is_over = choice.reader && choice.reader->complete() && deltas.empty();
  std::vector<TokenText> logprobs;
  if (!is_over) logprobs = texts(event.logprobs);
  if (!deltas.empty() || !logprobs.empty()) sink_->push(index, deltas, std::move(logprobs), out);
  if (event.finish != FinishReason::kNone) end_choice(request, index, event, out);
}

void AnswerAssembly::end_choice(int64_t request, int64_t index, const Event& event,
                                std::string& out) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  choice.ended = true;
  if (Usage usage = event.usage; usage.queued_ms > 0) {
    if (choice.reader && choice.reader->complete()) {
      usage.output_tokens = std::min(usage.output_tokens, choice.tokens);
    }
    usages_[static_cast<size_t>(request)].add_choice(usage, choice.reasoning.count());
    add(cost_.drafted, usage.drafted);
    add(cost_.accepted, usage.accepted);
    cost_.preemptions += usage.preemptions;
    if (cost_.queued_ms < 0) cost_.queued_ms = usage.queued_ms;
  }
  if (event.finish == FinishReason::kRefused || event.finish == FinishReason::kError) {
    if (!failure_) failure_ = event.error;
    return;
  }
  AnswerEnd end = AnswerEnd::kStop;
  std::string stop;
  if (choice.reader) {
    if (std::vector<OutputDelta> rest = choice.reader->finish(); !rest.empty()) {
      sink_->push(index, rest, {}, out);
    }
    end = choice.reader->end(event.finish);
    stop = choice.reader->stop();
  } else if (event.finish == FinishReason::kLength) {
    end = AnswerEnd::kLength;
  } else if (event.finish == FinishReason::kCancelled) {
    end = AnswerEnd::kCancelled;
  }
  if (choice.names_tool && !choice.calls_tool && end == AnswerEnd::kStop) ++cost_.unkept_calls;
  if (index == 0) end_ = end;
  sink_->end(index, end, stop, out);
}

bool AnswerAssembly::is_complete(int64_t request) const {
  const auto first = choices_.begin() + request * options_.choices;
  return std::all_of(first, first + options_.choices, [](const Choice& choice) {
    return choice.ended || (choice.reader && choice.reader->complete());
  });
}

AnswerUsage AnswerAssembly::usage() const {
  AnswerUsage sum;
  for (const AnswerUsage& usage : usages_) sum.add_request(usage);
  return sum;
}

}  // namespace tidemill
