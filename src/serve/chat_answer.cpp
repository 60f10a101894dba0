#include "serve/chat_answer.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "text/utf8.h"

namespace tidemill {
namespace {

using Kind = OutputDelta::Kind;

// OpenAI's stand-in for the logarithm of 0, which JSON cannot write.
constexpr float kLeastLogprob = -9999.0f;

Json token_json(const std::string& text, float logprob) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", text},
          {"logprob", std::isfinite(logprob) ? std::max(logprob, kLeastLogprob) : kLeastLogprob},
          {"bytes", std::move(bytes)}};
}

Json logprobs_json(const std::vector<TokenText>& tokens) {
  Json content = Json::array();
  for (const TokenText& token : tokens) {
    Json entry = token_json(token.text, token.logprob);
    Json top = Json::array();
    for (const auto& [text, logprob] : token.top) top.push_back(token_json(text, logprob));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

void append(std::vector<TokenText>& to, std::vector<TokenText> from) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
}

Json envelope_of(const AnswerHead& head, const char* object, Json choices) {
  return {{"id", "chatcmpl-" + head.nonce},
          {"object", object},
          {"created", head.created},
          {"model", head.model},
          {"choices", std::move(choices)}};
}

// As to_text() of a string.
void append_json_string(std::string& out, std::string_view text) {
  if (!is_valid_utf8(text)) {
    out += to_text(Json(text));
    return;
  }
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && c != '"' && c != '\\') {
      out += c;
      continue;
    }
    out += '\\';
    switch (c) {
      case '"':
      case '\\':
        out += c;
        break;
      case '\b':
        out += 'b';
        break;
      case '\t':
        out += 't';
        break;
      case '\n':
        out += 'n';
        break;
      case '\f':
        out += 'f';
        break;
      case '\r':
        out += 'r';
        break;
      default:
        out += "u00";
        out += kHex[byte >> 4];
        out += kHex[byte & 0xf];
    }
  }
  out += '"';
}

}  // namespace

Json chat_usage(const AnswerUsage& usage, bool thinking) {
  Json json = {{"prompt_tokens", usage.prompt_tokens},
               {"completion_tokens", usage.output_tokens},
               {"total_tokens", usage.prompt_tokens + usage.output_tokens},
               {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
               {"prompt_cache_hit_tokens", usage.cached_tokens},
               {"prompt_cache_miss_tokens", usage.prompt_tokens - usage.cached_tokens}};
  if (thinking) {
    json["completion_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
  }
  return json;
}

Json chat_finish_reason(AnswerEnd end) {
  switch (end) {
    case AnswerEnd::kStop:
    case AnswerEnd::kStopString:
      return "stop";
    case AnswerEnd::kToolCalls:
      return "tool_calls";
    case AnswerEnd::kLength:
      return "length";
    case AnswerEnd::kCancelled:
    case AnswerEnd::kFailed:
      break;
  }
  return nullptr;
}

// ---- stream

ChatStream::ChatStream(ChatAnswerOptions options)
    : options_(std::move(options)), logprobs_(static_cast<size_t>(options_.choices)) {
  const std::string text = to_text(envelope(Json::array()));
  const size_t at = text.rfind("[]") + 1;
  before_choice_ = text.substr(0, at);
  behind_choice_ = text.substr(at);
}

Json ChatStream::envelope(Json choices) const {
  Json json = envelope_of(options_.head, "chat.completion.chunk", std::move(choices));
  if (options_.include_usage) json["usage"] = nullptr;
  return json;
}

StreamEvent ChatStream::chunk(int64_t choice, Json delta, Json finish_reason) {
  Json json = {{"index", choice}, {"delta", std::move(delta)}};
  std::vector<TokenText>& logprobs = logprobs_[static_cast<size_t>(choice)];
  json["logprobs"] = logprobs.empty() ? Json() : logprobs_json(logprobs);
  logprobs.clear();
  json["finish_reason"] = std::move(finish_reason);
  return {.data = to_text(envelope(Json::array({std::move(json)})))};
}

// Nearly every chunk is one of these, and making and freeing their Json was most of what a chunk
// cost (docs/performance.md). So the text is put together here; its bytes are those of chunk().
StreamEvent ChatStream::text_chunk(int64_t choice, const OutputDelta& delta) const {
  std::string out;
  out.reserve(before_choice_.size() + behind_choice_.size() + delta.text.size() + 128);
  out += before_choice_;
  out += R"({"index":)";
  out += std::to_string(choice);
  out += R"(,"delta":{"content":)";
  if (delta.kind == Kind::kReasoning) {
    out += R"(null,"reasoning_content":)";
    append_json_string(out, delta.text);
  } else {
    append_json_string(out, delta.text);
    if (options_.head.thinking) out += R"(,"reasoning_content":null)";
  }
  out += R"(},"logprobs":null,"finish_reason":null})";
  out += behind_choice_;
  return {.name = {}, .data = std::move(out)};
}

std::vector<StreamEvent> ChatStream::begin(int64_t choice) {
  Json delta = {{"role", "assistant"}};
  if (options_.head.thinking) {
    delta["content"] = nullptr;
    delta["reasoning_content"] = "";
  } else {
    delta["content"] = "";
  }
  return {chunk(choice, std::move(delta), nullptr)};
}

std::vector<StreamEvent> ChatStream::push(int64_t choice, const std::vector<OutputDelta>& deltas,
                                          std::vector<TokenText> logprobs) {
  append(logprobs_[static_cast<size_t>(choice)], std::move(logprobs));
  std::vector<StreamEvent> events;
  for (const OutputDelta& delta : deltas) {
    const bool is_text = delta.kind == Kind::kReasoning || delta.kind == Kind::kContent;
    if (is_text && logprobs_[static_cast<size_t>(choice)].empty()) {
      events.push_back(text_chunk(choice, delta));
      continue;
    }
    Json json;
    switch (delta.kind) {
      case Kind::kReasoning:
        json = {{"content", nullptr}, {"reasoning_content", delta.text}};
        break;
      case Kind::kContent:
        json = {{"content", delta.text}};
        if (options_.head.thinking) json["reasoning_content"] = nullptr;
        break;
      case Kind::kToolCallBegin:
        json = {{"tool_calls",
                 Json::array({{{"index", delta.index},
                               {"id", tool_call_id(options_.head, choice, delta.index)},
                               {"type", "function"},
                               {"function", {{"name", delta.text}, {"arguments", ""}}}}})}};
        break;
      case Kind::kToolCallArguments:
        json = {{"tool_calls", Json::array({{{"index", delta.index},
                                             {"function", {{"arguments", delta.text}}}}})}};
        break;
      case Kind::kToolCallEnd:
        continue;
    }
    events.push_back(chunk(choice, std::move(json), nullptr));
  }
  return events;
}

std::vector<StreamEvent> ChatStream::end(int64_t choice, AnswerEnd end) {
  return {chunk(choice, {{"content", ""}}, chat_finish_reason(end))};
}

std::vector<StreamEvent> ChatStream::finish(const AnswerUsage& usage) const {
  std::vector<StreamEvent> events;
  if (options_.include_usage) {
    Json json = envelope(Json::array());
    json["usage"] = chat_usage(usage, options_.head.thinking);
    events.push_back({.data = to_text(json)});
  }
  events.push_back({.data = std::string(kStreamDone)});
  return events;
}

std::vector<StreamEvent> ChatStream::fail(const HttpError& error) {
  return {{.data = to_text(openai_error(error))}, {.data = std::string(kStreamDone)}};
}

// ---- one JSON

ChatCompletion::ChatCompletion(ChatAnswerOptions options)
    : options_(std::move(options)), choices_(static_cast<size_t>(options_.choices)) {}

void ChatCompletion::push(int64_t index, const std::vector<OutputDelta>& deltas,
                          std::vector<TokenText> logprobs) {
  Choice& choice = choices_[static_cast<size_t>(index)];
  append(choice.logprobs, std::move(logprobs));
  for (const OutputDelta& delta : deltas) {
    switch (delta.kind) {
      case Kind::kReasoning:
        choice.reasoning += delta.text;
        break;
      case Kind::kContent:
        choice.content += delta.text;
        break;
      case Kind::kToolCallBegin:
        choice.calls.push_back(
            {.id = tool_call_id(options_.head, index, delta.index), .name = delta.text});
        break;
      case Kind::kToolCallArguments:
        choice.calls.back().arguments += delta.text;
        break;
      case Kind::kToolCallEnd:
        break;
    }
  }
}

void ChatCompletion::end(int64_t choice, AnswerEnd end) {
  choices_[static_cast<size_t>(choice)].end = end;
}

Json ChatCompletion::message(const Choice& choice) const {
  Json json = {{"role", "assistant"}, {"content", choice.content}};
  if (options_.head.thinking) json["reasoning_content"] = choice.reasoning;
  if (choice.calls.empty()) return json;
  Json calls = Json::array();
  for (size_t i = 0; i < choice.calls.size(); ++i) {
    const ToolCall& call = choice.calls[i];
    calls.push_back({{"index", i},
                     {"id", call.id},
                     {"type", "function"},
                     {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  json["tool_calls"] = std::move(calls);
  return json;
}

Json ChatCompletion::finish(const AnswerUsage& usage) const {
  Json choices = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    choices.push_back({{"index", i},
                       {"message", message(choice)},
                       {"logprobs", options_.logprobs ? logprobs_json(choice.logprobs) : Json()},
                       {"finish_reason", chat_finish_reason(choice.end)}});
  }
  Json json = envelope_of(options_.head, "chat.completion", std::move(choices));
  json["usage"] = chat_usage(usage, options_.head.thinking);
  return json;
}

}  // namespace tidemill
