#include "cli/load/answer_reader.h"

#include <algorithm>
#include <array>

#include "text/utf8.h"

namespace tidemill::cli {
namespace {

const Json* find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

bool has_content(const Json& choice) {
  const auto filled = [](const Json* value) {
    return value != nullptr && (value->is_string() ? !value->get_ref<const std::string&>().empty()
                                                   : value->is_array() && !value->empty());
  };
  if (filled(find(choice, "text"))) return true;
  const Json* delta = find(choice, "delta");
  if (delta == nullptr) return false;
  constexpr std::array kKeys = {"content", "reasoning_content", "reasoning", "tool_calls"};
  return std::any_of(kKeys.begin(), kKeys.end(),
                     [&](const char* key) { return filled(find(*delta, key)); });
}

int64_t count(const Json* object, const char* key) {
  const Json* value = object == nullptr ? nullptr : find(*object, key);
  const bool usable = value != nullptr && value->is_number_integer() && *value >= 0;
  return usable ? value->get<int64_t>() : 0;
}

// At most kMaxLoadDetail bytes, up to the border of a character.
std::string_view shorten(std::string_view text) {
  size_t length = std::min(text.size(), kMaxLoadDetail);
  const auto continues = [&](size_t i) {
    return i < text.size() && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80;
  };
  while (length > 0 && continues(length)) --length;
  return text.substr(0, length);
}

// What a server sends need not be UTF-8; a report must.
std::string cut(std::string_view text) {
  return std::string(shorten(replace_invalid_utf8(shorten(text))));
}

std::string message_of(const Json& json, std::string_view otherwise) {
  if (json.is_string()) return cut(json.get_ref<const std::string&>());
  for (const char* key : {"error", "message", "detail"}) {
    if (const Json* inner = find(json, key)) return message_of(*inner, otherwise);
  }
  return cut(otherwise);
}

}  // namespace

void set_error(LoadRecord& record, std::string_view reason, std::string_view detail) {
  record.outcome = LoadOutcome::kError;
  record.reason = reason;
  record.detail = cut(detail);
}

std::string error_text(std::string_view body) {
  const auto json = parse_json(body);
  return json ? message_of(*json, body) : cut(body);
}

bool AnswerReader::end_with_error(std::string_view reason, std::string_view detail) {
  over_ = true;
  set_error(record_, reason, detail);
  return false;
}

void AnswerReader::take_usage(const Json& usage) {
  record_.has_usage = true;
  record_.prompt_tokens = count(&usage, "prompt_tokens");
  record_.completion_tokens = count(&usage, "completion_tokens");
  record_.cached_tokens = std::max(count(find(usage, "prompt_tokens_details"), "cached_tokens"),
                                   count(&usage, "prompt_cache_hit_tokens"));
}

bool AnswerReader::take(const StreamEvent& event, double now_s) {
  if (over_) return false;
  if (event.data == kStreamDone) {
    over_ = true;
    record_.outcome = LoadOutcome::kOk;
    return false;
  }
  if (event.data.empty()) return true;
  const auto json = parse_json(event.data);
  if (!json) return end_with_error("bad_answer", json.error().message);
  if (!json->is_object()) return end_with_error("bad_answer", "an event is not a JSON object");
  if (find(*json, "error") != nullptr || event.name == "error") {
    return end_with_error("server_error", message_of(*json, event.data));
  }
  if (const Json* usage = find(*json, "usage")) take_usage(*usage);
  const Json* choices = find(*json, "choices");
  if (choices == nullptr || !choices->is_array()) return true;
  bool content = false;
  for (const Json& choice : *choices) {
    content = content || has_content(choice);
    const Json* finish = find(choice, "finish_reason");
    if (finish != nullptr && finish->is_string()) record_.finish = cut(finish->get<std::string>());
  }
  if (content) record_.chunks_s.push_back(now_s);
  return true;
}

}  // namespace tidemill::cli
