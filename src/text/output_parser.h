// Streamed model output to reasoning, content and tool calls: one automaton over bytes, so the
// result does not depend on how the stream was cut.
//
// A call is written as
//   <｜DSML｜ calls>
//   <｜DSML｜ invoke name="f">
//   <｜DSML｜ parameter name="city" string="true">raw text</｜DSML｜ parameter>
//   <｜DSML｜ parameter name="days" string="false">JSON</｜DSML｜ parameter>
//   </｜DSML｜ invoke>
//   </｜DSML｜ calls>
// and read with some tolerance: only the parts that carry meaning are looked for.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "text/marker_scanner.h"
#include "text/prompt.h"

namespace tidemill {

struct OutputDelta {
  enum class Kind {
    kReasoning,          // text
    kContent,            // text
    kToolCallBegin,      // index, text = function name
    kToolCallArguments,  // index, text = a piece of the JSON arguments
    kToolCallEnd,        // index: the call is complete
  } kind;
  std::string text;
  int index = 0;
};

struct OutputParserOptions {
  Prompt::Start start = Prompt::Start::kContent;
  bool continues_prefix = false;  // leading newlines belong to the answer
  bool tools_declared = false;    // otherwise DSML markup is ordinary text
  std::vector<std::string> stop;  // matched in content only; the stop text is not returned
};

// Not thread safe; one per answer. push() takes any bytes, cut anywhere. A delta never ends inside
// a UTF-8 character that the stream completes; invalid bytes are handed on as they are.
//
// The joined arguments of a complete call are a JSON object if the model wrote valid JSON in its
// string="false" parameters; that is not checked here.
class OutputParser {
 public:
  explicit OutputParser(OutputParserOptions options);

  // Deltas that are certain by now; the longest suffix that may begin a marker is held back.
  std::vector<OutputDelta> push(std::string_view bytes);
  // End of stream: flushes what was held back as text of the current state.
  std::vector<OutputDelta> finish();

  // A stop string or the end of the tool calls was seen, or finish() called: later input is
  // discarded.
  bool done() const { return state_ == State::kDone; }
  bool stopped_by_string() const { return stopped_by_string_; }
  int tool_calls() const { return tool_calls_; }           // begun
  bool tool_call_open() const { return tool_call_open_; }  // the last one is not complete

 private:
  enum class State {
    kReasoning,
    kContent,
    kCalls,        // between calls
    kName,         // of a function
    kArguments,    // between parameters
    kKey,          // a parameter's name
    kStringValue,  // raw text
    kJsonValue,    // raw JSON
    kDone,
  };
  static constexpr size_t kStates = static_cast<size_t>(State::kDone);

  void step(char byte);
  void take_marker(size_t marker);
  void take_text(std::string_view text);
  void begin_call();
  void end_call();
  void begin_value(State state);
  void emit(OutputDelta::Kind kind, std::string_view text);
  std::vector<OutputDelta> take_deltas();

  std::array<MarkerScanner, kStates> scanners_;
  size_t stops_;  // the first markers of kContent are the stop strings
  State state_;
  bool skips_newlines_;  // at the start of reasoning or content
  std::string text_;     // of this state, held back
  std::string name_;     // of the function or parameter that is being read
  bool has_parameters_ = false;
  bool tool_call_open_ = false;
  bool stopped_by_string_ = false;
  int tool_calls_ = 0;
  std::vector<OutputDelta> deltas_;  // not handed out yet
};

}  // namespace tidemill
