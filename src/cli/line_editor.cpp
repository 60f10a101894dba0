#include "cli/line_editor.h"

#include <histedit.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace tidemill::cli {

struct LineEditor::Terminal {
  EditLine* edit = nullptr;
  History* lines = nullptr;
  std::string prompt;
  bool interrupted = false;

  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  static Terminal* of(EditLine* edit) {
    void* data = nullptr;
    el_get(edit, EL_CLIENTDATA, &data);
    return static_cast<Terminal*>(data);
  }
};

LineEditor::Terminal::Terminal() {
  // libedit takes characters by the locale; text here is UTF-8 whatever the environment says.
  if (std::setlocale(LC_CTYPE, "") == nullptr || MB_CUR_MAX == 1) {
    std::setlocale(LC_CTYPE, "C.UTF-8");
  }
  edit = el_init("tidemill", stdin, stderr, stderr);
  lines = history_init();
  HistEvent event;
  history(lines, &event, H_SETSIZE, 1000);

  using PromptFunction = char* (*)(EditLine*);
  const PromptFunction show_prompt = [](EditLine* of_edit) { return of(of_edit)->prompt.data(); };
  using KeyFunction = unsigned char (*)(EditLine*, int);
  const KeyFunction interrupt = [](EditLine* of_edit, int) -> unsigned char {
    of(of_edit)->interrupted = true;
    return CC_NEWLINE;
  };
  el_set(edit, EL_CLIENTDATA, this);
  el_set(edit, EL_PROMPT, show_prompt);
  el_set(edit, EL_EDITOR, "emacs");
  el_set(edit, EL_HIST, history, lines);
  // While a line is edited Ctrl-C is a key, not a signal: only then can the line be dropped and the
  // editor go on.
  el_set(edit, EL_SETTY, "-d", "-isig", nullptr);
  el_wset(edit, EL_ADDFN, L"tidemill-interrupt", L"Drop the line", interrupt);  // el_set leaks here
  el_set(edit, EL_BIND, "^C", "tidemill-interrupt", nullptr);
}

LineEditor::Terminal::~Terminal() {
  history_end(lines);
  el_end(edit);
}

LineEditor::LineEditor() {
  if (::isatty(STDIN_FILENO) == 1) terminal_ = std::make_unique<Terminal>();
}

LineEditor::~LineEditor() = default;

bool LineEditor::interactive() const { return terminal_ != nullptr; }

LineEditor::Event LineEditor::read(const std::string& prompt, std::string& line) {
  if (terminal_ == nullptr) {
    line.clear();
    for (int c; (c = std::getc(stdin)) != EOF && c != '\n';) line += static_cast<char>(c);
    return line.empty() && std::feof(stdin) != 0 ? Event::kEnd : Event::kLine;
  }
  terminal_->prompt = prompt;
  terminal_->interrupted = false;
  int length = 0;
  // el_gets would show the prompt first and take the terminal afterwards; a key in between would
  // be the terminal's, and Ctrl-C a signal.
  el_set(terminal_->edit, EL_PREP_TERM, 1);
  const char* const text = el_gets(terminal_->edit, &length);
  if (terminal_->interrupted) {
    std::fputs("^C\n", stderr);
    return Event::kInterrupt;
  }
  if (text == nullptr || length <= 0) {
    std::fputc('\n', stderr);
    return Event::kEnd;
  }
  line.assign(text);
  while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
  HistEvent event;
  if (!line.empty()) history(terminal_->lines, &event, H_ENTER, text);
  return Event::kLine;
}

}  // namespace tidemill::cli
