#include "serve/answer.h"

#include <algorithm>

namespace tidemill {
namespace {

constexpr std::string_view kWrapper = R"({"arguments": )";

// The object in a complete {"arguments": OBJECT} or {"arguments": "TEXT OF AN OBJECT"}, as text.
std::optional<std::string> unwrap(std::string_view text) {
  if (text.size() <= kWrapper.size() || !text.starts_with(kWrapper)) return std::nullopt;
  const std::string_view inner = text.substr(kWrapper.size(), text.size() - kWrapper.size() - 1);
  const Result<Json> value = parse_json(inner);  // fails when more parameters follow
  if (!value) return std::nullopt;
  if (value->is_object()) return std::string(inner);
  if (!value->is_string()) return std::nullopt;
  const auto& quoted = value->get_ref<const std::string&>();
  const Result<Json> object = parse_json(quoted);
  if (!object || !object->is_object()) return std::nullopt;
  return quoted;
}

}  // namespace

void AnswerUsage::add_choice(const Usage& usage, int64_t reasoning) {
  prompt_tokens = usage.prompt_tokens;
  cached_tokens = has_choice_ ? std::min(cached_tokens, usage.cached_tokens) : usage.cached_tokens;
  has_choice_ = true;
  output_tokens += usage.output_tokens;
  reasoning_tokens += std::min(reasoning, usage.output_tokens);
}

void AnswerUsage::add_request(const AnswerUsage& other) {
  prompt_tokens += other.prompt_tokens;
  cached_tokens += other.cached_tokens;
  output_tokens += other.output_tokens;
  reasoning_tokens += other.reasoning_tokens;
}

std::string ToolArguments::push(std::string_view piece) {
  if (!undecided_) return std::string(piece);
  held_ += piece;
  const size_t known = std::min(held_.size(), kWrapper.size());
  if (held_.compare(0, known, kWrapper, 0, known) == 0) return "";
  undecided_ = false;
  return std::exchange(held_, {});
}

std::string ToolArguments::finish(bool complete) {
  if (complete && undecided_) {
    if (std::optional<std::string> inner = unwrap(held_)) held_ = *std::move(inner);
  }
  undecided_ = false;
  return std::exchange(held_, {});
}

AnswerReader::AnswerReader(const OutputParserOptions& options, const std::vector<Tool>& tools)
    : parser_(options), stops_(options.stop) {
  for (const Tool& tool : tools) {
    const auto properties = tool.parameters.find("properties");
    if (properties != tool.parameters.end() && properties->is_object() &&
        properties->contains("arguments")) {
      takes_arguments_.insert(tool.name);
    }
  }
}

std::vector<OutputDelta> AnswerReader::push(std::string_view text) {
  return rewrite(stops_.empty() ? parser_.push(text) : parse(text));
}

// Byte by byte, to see which stop string ends where the parser stops.
std::vector<OutputDelta> AnswerReader::parse(std::string_view text) {
  size_t longest = 0;
  for (const std::string& stop : stops_) longest = std::max(longest, stop.size());
  std::vector<OutputDelta> deltas;
  for (size_t i = 0; i < text.size() && !parser_.done(); ++i) {
    if (tail_.size() == longest) tail_.erase(0, 1);
    tail_ += text[i];
    for (OutputDelta& delta : parser_.push(text.substr(i, 1))) {
      const bool joins = !deltas.empty() && deltas.back().kind == delta.kind &&
                         deltas.back().index == delta.index && !delta.text.empty() &&
                         delta.kind != OutputDelta::Kind::kToolCallBegin;
      if (joins) {
        deltas.back().text += delta.text;
      } else {
        deltas.push_back(std::move(delta));
      }
    }
  }
  if (!parser_.stopped_by_string() || !stop_.empty()) return deltas;
  // Of several that end here the parser takes the one listed first.
  const auto met = std::find_if(stops_.begin(), stops_.end(),
                                [&](const std::string& stop) { return tail_.ends_with(stop); });
  if (met != stops_.end()) stop_ = *met;
  return deltas;
}

std::vector<OutputDelta> AnswerReader::finish() {
  was_complete_ = parser_.done();
  std::vector<OutputDelta> deltas = rewrite(parser_.finish());
  if (call_ < 0) return deltas;
  if (std::string rest = arguments_.finish(false); !rest.empty()) {
    deltas.push_back({OutputDelta::Kind::kToolCallArguments, std::move(rest), call_});
  }
  call_ = -1;
  return deltas;
}

std::vector<OutputDelta> AnswerReader::rewrite(std::vector<OutputDelta> deltas) {
  using Kind = OutputDelta::Kind;
  std::vector<OutputDelta> out;
  for (OutputDelta& delta : deltas) {
    switch (delta.kind) {
      case Kind::kToolCallBegin:
        call_ = delta.index;
        arguments_ = ToolArguments(!takes_arguments_.contains(delta.text));
        break;
      case Kind::kToolCallArguments:
        delta.text = arguments_.push(delta.text);
        if (delta.text.empty()) continue;
        break;
      case Kind::kToolCallEnd:
        call_ = -1;
        if (std::string rest = arguments_.finish(true); !rest.empty()) {
          out.push_back({Kind::kToolCallArguments, std::move(rest), delta.index});
        }
        break;
      case Kind::kReasoning:
      case Kind::kContent:
        if (delta.text.empty()) continue;
        break;
    }
    out.push_back(std::move(delta));
  }
  return out;
}

AnswerEnd AnswerReader::end(FinishReason reason) const {
  switch (reason) {
    case FinishReason::kLength:
      return AnswerEnd::kLength;
    case FinishReason::kRefused:
    case FinishReason::kError:
    case FinishReason::kNone:
      return AnswerEnd::kFailed;
    case FinishReason::kCancelled:  // also by us, when complete() said so
    case FinishReason::kStop:
      break;
  }
  if (parser_.stopped_by_string()) return AnswerEnd::kStopString;
  if (reason == FinishReason::kCancelled && !was_complete_) return AnswerEnd::kCancelled;
  if (parser_.tool_call_open()) return AnswerEnd::kLength;
  return parser_.tool_calls() > 0 ? AnswerEnd::kToolCalls : AnswerEnd::kStop;
}

void ReasoningCount::push(const std::vector<int32_t>& tokens) {
  for (const int32_t token : tokens) {
    if (!open_) return;
    open_ = std::find(ends_.begin(), ends_.end(), token) == ends_.end();
    if (open_) ++count_;
  }
}

std::string to_text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string tool_call_id(const AnswerHead& head, int64_t choice, int index) {
  if (choice == 0) return fmt::format("call_{:02}_{}", index, head.nonce);
  return fmt::format("call_{:02}_{}_{}", index, head.nonce, choice);
}

}  // namespace tidemill
