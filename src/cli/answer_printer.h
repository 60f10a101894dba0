// An answer's text on the terminal, while it comes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/output_parser.h"
#include "text/prompt.h"

namespace tidemill::cli {

// Collects reasoning and content; with `stream` the content also goes to stdout and the reasoning,
// dimmed on a terminal, to stderr. Not thread safe.
class AnswerPrinter {
 public:
  AnswerPrinter(const Prompt& prompt, bool stream);

  // Whole characters, the markers between reasoning and content included.
  void push(std::string_view text);
  // End of the answer; ends the line. Error: of stdout, also an earlier one.
  Status finish();

  const std::string& content() const { return content_; }
  const std::string& reasoning() const { return reasoning_; }

 private:
  void take(const std::vector<OutputDelta>& deltas);
  void show_reasoning(const std::string& text);
  void end_reasoning();

  OutputParser parser_;
  bool stream_;
  bool dim_;  // stderr is a terminal
  bool reasoning_open_ = false;
  std::string content_;
  std::string reasoning_;
  Status written_;
};

}  // namespace tidemill::cli
