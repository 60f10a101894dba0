#include "cli/answer_printer.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>

#include "cli/output.h"

namespace tidemill::cli {

AnswerPrinter::AnswerPrinter(const Prompt& prompt, bool stream)
    : parser_({.start = prompt.start, .continues_prefix = prompt.continues_prefix}),
      stream_(stream),
      dim_(::isatty(STDERR_FILENO) == 1) {}

void AnswerPrinter::push(std::string_view text) { take(parser_.push(text)); }

Status AnswerPrinter::finish() {
  take(parser_.finish());
  end_reasoning();
  if (stream_ && written_) written_ = stream_stdout("\n");
  return written_;
}

void AnswerPrinter::take(const std::vector<OutputDelta>& deltas) {
  for (const OutputDelta& delta : deltas) {
    if (delta.kind == OutputDelta::Kind::kReasoning) {
      reasoning_ += delta.text;
      if (stream_) show_reasoning(delta.text);
    } else if (delta.kind == OutputDelta::Kind::kContent) {
      end_reasoning();
      content_ += delta.text;
      if (stream_ && written_) written_ = stream_stdout(delta.text);
    }
  }
}

void AnswerPrinter::show_reasoning(const std::string& text) {
  if (!reasoning_open_ && dim_) fmt::print(stderr, "\x1b[2m");
  reasoning_open_ = true;
  fmt::print(stderr, "{}", text);
  std::fflush(stderr);
}

void AnswerPrinter::end_reasoning() {
  if (!reasoning_open_) return;
  reasoning_open_ = false;
  fmt::print(stderr, "{}\n\n", dim_ ? "\x1b[0m" : "");
  std::fflush(stderr);
}

}  // namespace tidemill::cli
