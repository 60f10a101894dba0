#include "text/output_parser.h"

#include <algorithm>
#include <utility>

#include "text/special_tokens.h"
#include "text/utf8.h"

namespace tidemill {
namespace {

using Kind = OutputDelta::Kind;

constexpr std::string_view kDsmlBegin = "<｜DSML｜";
constexpr std::string_view kDsmlEnd = "</｜DSML｜";

// Is the text of such deltas one stream, cut anywhere?
bool has_text_pieces(Kind kind) {
  return kind != Kind::kToolCallBegin && kind != Kind::kToolCallEnd;
}

// A parameter's name as the inside of a JSON string. Models write it raw or with JSON's escapes.
std::string json_key(const std::string& name) {
  if (parse_json('"' + name + '"')) return name;
  std::string escaped;
  append_json_escaped(escaped, name);
  return escaped;
}

// Length of `text` without a character at its end that later bytes may complete.
size_t whole_characters(std::string_view text) {
  // A character has at most three continuation bytes behind it while it is incomplete.
  for (size_t tail = 1; tail <= std::min<size_t>(3, text.size()); ++tail) {
    const size_t begin = text.size() - tail;
    const bool is_continuation = (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80;
    if (is_continuation) continue;
    const bool is_cut = next_utf8(text.substr(begin)).kind == Utf8Unit::Kind::kIncomplete;
    return is_cut ? begin : text.size();
  }
  return text.size();
}

}  // namespace

// The order of the markers is what take_marker goes by.
OutputParser::OutputParser(OutputParserOptions options) : stops_(0) {
  const auto scanner = [this](State state) -> MarkerScanner& {
    return scanners_[static_cast<size_t>(state)];
  };
  std::vector<Marker> reasoning = {{std::string(special::kThinkEnd), true}};
  std::vector<Marker> content;
  for (std::string& stop : options.stop) {
    if (!stop.empty()) content.push_back({std::move(stop)});
  }
  stops_ = content.size();
  content.push_back({std::string(special::kThinkEnd)});
  if (options.tools_declared) {
    reasoning.push_back({std::string(kDsmlBegin), true});
    content.push_back({std::string(kDsmlBegin), true});
  }
  const std::string dsml_end(kDsmlEnd);
  scanner(State::kReasoning) = MarkerScanner(std::move(reasoning));
  scanner(State::kContent) = MarkerScanner(std::move(content));
  // The last one closes the calls of V4, which V4.1 still writes at times.
  scanner(State::kCalls) =
      MarkerScanner({{"invoke name=\""}, {dsml_end + " calls>"}, {dsml_end + "tool_calls>"}});
  scanner(State::kName) = MarkerScanner({{"\""}});
  scanner(State::kArguments) = MarkerScanner({{"parameter name=\""}, {dsml_end}});
  scanner(State::kKey) =
      MarkerScanner({{"\" string=\"true\">"}, {"\" string=\"false\">"}, {"\">"}, {dsml_end}});
  scanner(State::kStringValue) = MarkerScanner({{dsml_end}});
  scanner(State::kJsonValue) = MarkerScanner({{dsml_end}});

  switch (options.start) {
    case Prompt::Start::kReasoning:
      state_ = State::kReasoning;
      break;
    case Prompt::Start::kContent:
      state_ = State::kContent;
      break;
    case Prompt::Start::kToolCalls:
      state_ = State::kCalls;
      break;
  }
  skips_newlines_ = !options.continues_prefix;
}

std::vector<OutputDelta> OutputParser::push(std::string_view bytes) {
  for (const char byte : bytes) {
    if (done()) break;
    step(byte);
  }
  return take_deltas();
}

std::vector<OutputDelta> OutputParser::finish() {
  if (!done()) take_text(std::exchange(text_, {}));
  state_ = State::kDone;
  return std::exchange(deltas_, {});
}

void OutputParser::step(char byte) {
  if (skips_newlines_ && (state_ == State::kReasoning || state_ == State::kContent)) {
    if (byte == '\n') return;
    skips_newlines_ = false;
  }
  MarkerScanner& scanner = scanners_[static_cast<size_t>(state_)];
  text_ += byte;
  const std::optional<MarkerScanner::Match> match = scanner.step(byte);
  const size_t certain = text_.size() - (match ? match->size : scanner.held());
  if (certain > 0) {
    take_text(std::string_view(text_).substr(0, certain));
    text_.erase(0, certain);
  }
  if (match) {
    text_.clear();
    take_marker(match->marker);
  }
}

void OutputParser::take_text(std::string_view text) {
  switch (state_) {
    case State::kReasoning:
      return emit(Kind::kReasoning, text);
    case State::kContent:
      return emit(Kind::kContent, text);
    case State::kName:
    case State::kKey:
      name_ += text;
      return;
    case State::kStringValue: {
      std::string escaped;
      append_json_escaped(escaped, text);
      return emit(Kind::kToolCallArguments, escaped);
    }
    case State::kJsonValue:
      return emit(Kind::kToolCallArguments, text);
    case State::kCalls:
    case State::kArguments:
    case State::kDone:
      return;  // layout
  }
}

void OutputParser::take_marker(size_t marker) {
  switch (state_) {
    case State::kReasoning:
      skips_newlines_ = true;
      state_ = marker == 0 ? State::kContent : State::kCalls;
      return;
    case State::kContent:
      if (marker < stops_) {
        stopped_by_string_ = true;
        state_ = State::kDone;
      } else if (marker > stops_) {  // otherwise a stray </think>: left out
        state_ = State::kCalls;
      }
      return;
    case State::kCalls:
      state_ = marker == 0 ? State::kName : State::kDone;
      return;
    case State::kName:
      return begin_call();
    case State::kArguments:
      if (marker == 1) return end_call();
      state_ = State::kKey;
      return;
    case State::kKey:
      if (marker < 3) return begin_value(marker == 1 ? State::kJsonValue : State::kStringValue);
      name_.clear();  // a tag without its end: the parameter is lost
      state_ = State::kArguments;
      return;
    case State::kStringValue:
      emit(Kind::kToolCallArguments, "\"");
      state_ = State::kArguments;
      return;
    case State::kJsonValue:
      state_ = State::kArguments;
      return;
    case State::kDone:
      return;
  }
}

void OutputParser::begin_call() {
  ++tool_calls_;
  tool_call_open_ = true;
  has_parameters_ = false;
  emit(Kind::kToolCallBegin, std::exchange(name_, {}));
  state_ = State::kArguments;
}

void OutputParser::end_call() {
  emit(Kind::kToolCallArguments, has_parameters_ ? "}" : "{}");
  emit(Kind::kToolCallEnd, {});
  tool_call_open_ = false;
  state_ = State::kCalls;
}

void OutputParser::begin_value(State state) {
  emit(Kind::kToolCallArguments, std::exchange(has_parameters_, true) ? ", \"" : "{\"");
  emit(Kind::kToolCallArguments, json_key(std::exchange(name_, {})));
  emit(Kind::kToolCallArguments, state == State::kStringValue ? "\": \"" : "\": ");
  state_ = state;
}

void OutputParser::emit(Kind kind, std::string_view text) {
  const bool is_text = has_text_pieces(kind);
  if (is_text && text.empty()) return;
  const bool is_call = kind != Kind::kReasoning && kind != Kind::kContent;
  const int index = is_call ? tool_calls_ - 1 : 0;
  const bool joins =
      is_text && !deltas_.empty() && deltas_.back().kind == kind && deltas_.back().index == index;
  if (joins) {
    deltas_.back().text += text;
  } else {
    deltas_.push_back({kind, std::string(text), index});
  }
}

// A character that is cut at the end of the last delta waits for its other bytes.
std::vector<OutputDelta> OutputParser::take_deltas() {
  std::vector<OutputDelta> ready = std::exchange(deltas_, {});
  if (ready.empty() || !has_text_pieces(ready.back().kind)) return ready;
  OutputDelta& last = ready.back();
  const size_t whole = whole_characters(last.text);
  if (whole == last.text.size()) return ready;
  deltas_.push_back({last.kind, last.text.substr(whole), last.index});
  last.text.resize(whole);
  if (last.text.empty()) ready.pop_back();
  return ready;
}

}  // namespace tidemill
