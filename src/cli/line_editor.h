// Lines from a person (libedit: editing, history of lines) or from a pipe.
#pragma once

#include <memory>
#include <string>

namespace tidemill::cli {

// One at a time, one thread. Editing and prompts use stderr, so that stdout holds answers only.
class LineEditor {
 public:
  LineEditor();
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  enum class Event { kLine, kInterrupt, kEnd };
  // Shows the prompt if stdin is a terminal. kLine: `line` holds it, without its newline;
  // kInterrupt: Ctrl-C was pressed, the line is dropped.
  Event read(const std::string& prompt, std::string& line);
  bool interactive() const;

 private:
  struct Terminal;
  std::unique_ptr<Terminal> terminal_;  // null: stdin is not a terminal
};

}  // namespace tidemill::cli
