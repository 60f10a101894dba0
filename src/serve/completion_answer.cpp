#include "serve/completion_answer.h"

#include <algorithm>
#include <cmath>

#include "serve/chat_answer.h"

namespace tidemill {
namespace {

constexpr float kLeastLogprob = -9999.0f;  // as in chat answers

float finite(float logprob) {
  return std::isfinite(logprob) ? std::max(logprob, kLeastLogprob) : kLeastLogprob;
}

// Bytes that begin a character.
int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

// `offset`: of the first token in the text of the choice; advanced behind the last.
Json logprobs_json(const std::vector<TokenText>& tokens, int64_t& offset) {
  Json texts = Json::array();
  Json values = Json::array();
  Json tops = Json::array();
  Json offsets = Json::array();
  for (const TokenText& token : tokens) {
    texts.push_back(token.text);
    values.push_back(finite(token.logprob));
    Json top = Json::object();
    for (const auto& [text, logprob] : token.top) top[text] = finite(logprob);
    tops.push_back(std::move(top));
    offsets.push_back(offset);
    offset += characters(token.text);
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json choice_json(int64_t index, const std::string& text, Json logprobs, Json finish) {
  return {{"index", index},
          {"text", text},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", std::move(finish)}};
}

Json envelope(const AnswerHead& head, Json choices) {
  return {{"id", "cmpl-" + head.nonce},
          {"object", "text_completion"},
          {"created", head.created},
          {"model", head.model},
          {"choices", std::move(choices)}};
}

}  // namespace

CompletionStream::CompletionStream(CompletionAnswerOptions options)
    : options_(std::move(options)), offsets_(static_cast<size_t>(options_.choices)) {}

StreamEvent CompletionStream::chunk(int64_t choice, const std::string& text, Json logprobs,
                                    Json finish) const {
  Json json =
      envelope(options_.head,
               Json::array({choice_json(choice, text, std::move(logprobs), std::move(finish))}));
  if (options_.include_usage) json["usage"] = nullptr;
  return {.data = to_text(json)};
}

std::vector<StreamEvent> CompletionStream::push(int64_t choice, const std::string& text,
                                                const std::vector<TokenText>& logprobs) {
  if (text.empty() && logprobs.empty()) return {};
  Json json;
  if (!logprobs.empty()) json = logprobs_json(logprobs, offsets_[static_cast<size_t>(choice)]);
  return {chunk(choice, text, std::move(json), nullptr)};
}

std::vector<StreamEvent> CompletionStream::end(int64_t choice, AnswerEnd end) {
  return {chunk(choice, "", nullptr, chat_finish_reason(end))};
}

std::vector<StreamEvent> CompletionStream::finish(const AnswerUsage& usage) const {
  std::vector<StreamEvent> events;
  if (options_.include_usage) {
    Json json = envelope(options_.head, Json::array());
    json["usage"] = chat_usage(usage, options_.head.thinking);
    events.push_back({.data = to_text(json)});
  }
  events.push_back({.data = std::string(kStreamDone)});
  return events;
}

std::vector<StreamEvent> CompletionStream::fail(const HttpError& error) {
  return ChatStream::fail(error);
}

Completion::Completion(CompletionAnswerOptions options)
    : options_(std::move(options)), choices_(static_cast<size_t>(options_.choices)) {}

void Completion::push(int64_t index, const std::string& text, std::vector<TokenText> logprobs) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  choice.text += text;
  std::move(logprobs.begin(), logprobs.end(), std::back_inserter(choice.logprobs));
}

void Completion::end(int64_t choice, AnswerEnd end) {
  choices_[static_cast<size_t>(choice)].end = end;
}

Json Completion::finish(const AnswerUsage& usage) const {
  Json choices = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    int64_t offset = 0;
    choices.push_back(
        choice_json(static_cast<int64_t>(i), choice.text,
                    options_.logprobs ? logprobs_json(choice.logprobs, offset) : Json(),
                    chat_finish_reason(choice.end)));
  }
  Json json = envelope(options_.head, std::move(choices));
  json["usage"] = chat_usage(usage, options_.head.thinking);
  return json;
}

}  // namespace tidemill
