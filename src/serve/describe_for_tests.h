// Requests as JSON for the cases of tests/cases/serve: what differs from the defaults, by name.
#pragma once

#include <string>

#include "serve/generation.h"
#include "text/special_tokens.h"

namespace tidemill {

inline Json describe(const Constraint& constraint) {
  constexpr const char* kKinds[] = {"json_object", "json_schema", "regex", "ebnf", "tool_calls"};
  constexpr const char* kChoices[] = {"auto", "required", "named"};
  Json json = {{"kind", kKinds[static_cast<size_t>(constraint.kind)]}};
  if (!constraint.text.empty()) json["text"] = constraint.text;
  if (constraint.kind == Constraint::Kind::kToolCalls) {
    json["choice"] = kChoices[static_cast<size_t>(constraint.choice)];
    if (constraint.strict) json["strict"] = true;
    if (!constraint.parallel) json["parallel"] = false;
  }
  return json;
}

inline void describe(const SamplingParams& sampling, Json& json) {
  const SamplingParams usual;
  const auto put = [&](const char* name, float value, float otherwise) {
    // As it was written: 0.1, not the float nearest to it.
    if (value != otherwise) json[name] = Json::parse(fmt::format("{}", value));
  };
  put("temperature", sampling.temperature, usual.temperature);
  put("top_p", sampling.top_p, usual.top_p);
  put("min_p", sampling.min_p, usual.min_p);
  put("repetition_penalty", sampling.repetition_penalty, usual.repetition_penalty);
  put("presence_penalty", sampling.presence_penalty, usual.presence_penalty);
  put("frequency_penalty", sampling.frequency_penalty, usual.frequency_penalty);
  if (sampling.top_k != usual.top_k) json["top_k"] = sampling.top_k;
  if (sampling.logprobs) json["logprobs"] = *sampling.logprobs;
  for (const auto& [token, bias] : sampling.logit_bias) {
    json["logit_bias"][std::to_string(token)] = bias;
  }
}

inline Json describe(const Generation& generation) {
  const Request& request = generation.request;
  const Request usual;
  Json json = Json::object();
  if (!generation.model.empty()) json["model"] = generation.model;
  describe(request.sampling, json);
  if (generation.has_seed) json["seed"] = request.sampling.seed;
  if (generation.max_tokens) json["max_tokens"] = *generation.max_tokens;
  if (request.n != usual.n) json["n"] = request.n;
  if (!request.stop.empty()) json["stop"] = request.stop;
  if (!request.stop_tokens.empty()) json["stop_token_ids"] = request.stop_tokens;
  if (request.ignore_end) json["ignore_eos"] = true;
  if (request.priority != 0) json["priority"] = request.priority;
  if (!request.cache_salt.empty()) json["cache_salt"] = request.cache_salt;
  if (request.constraint) json["constraint"] = describe(*request.constraint);
  if (generation.stream) json["stream"] = true;
  if (generation.include_usage) json["include_usage"] = true;
  if (!generation.unknown.empty()) json["unknown"] = generation.unknown;
  return json;
}

inline Json describe(const ConversationRequest& request) {
  constexpr const char* kStarts[] = {"content", "reasoning", "tool_calls"};
  Json json = describe(request.generation);
  if (!request.conversation.thinking) json["thinking"] = false;
  if (request.conversation.reasoning_effort != 75) {
    json["effort"] = request.conversation.reasoning_effort;
  }
  json["start"] = kStarts[static_cast<size_t>(request.generation.request.start)];
  if (!request.parser.stop.empty()) {
    json["parser_stop"] = request.parser.stop;
  }
  return json;
}

// The prompt with short names for its special tokens and the sentence about effort, without its
// beginning and the mark of thinking at its end; null when it holds a tool's or a format's text.
inline Json describe(const Prompt& prompt) {
  std::string text;
  for (const PromptPiece& piece : prompt.pieces) {
    if (!piece.special) {
      text += piece.text;
    } else if (piece.text == special::kDsml) {
      text += "⟦D⟧";
    } else if (piece.text == special::kEos) {
      text += "⟦E⟧";
    } else if (piece.text != special::kBos && !piece.text.ends_with("think>")) {
      text += "⟦" + piece.text.substr(std::string("<｜").size(), 1) + "⟧";
    }
  }
  for (const char* effort : {"75", "100"}) {
    const std::string sentence = fmt::format("Reasoning Effort: {} ", effort);
    const size_t at = text.find(sentence);
    if (at == std::string::npos) continue;
    const size_t end = text.find("\n\n", at);
    text.replace(at, end + 2 - at, std::string("E") + effort);
  }
  return text.find("## ") == std::string::npos ? Json(text) : Json();
}

}  // namespace tidemill
