#include "cli/message_lines.h"

#include <utility>

namespace tidemill::cli {

constexpr std::string_view kFence = "\"\"\"";

std::optional<std::string> MessageLines::push(std::string_view line) {
  if (!open_ && line.starts_with(kFence)) {
    open_ = block_ = true;
    line.remove_prefix(kFence.size());
    if (line.empty())
      return std::nullopt;  // the fence stood alone: the text begins on the next line
  }
  open_ = true;
  bool complete = !block_;
  if (block_ && line.ends_with(kFence)) {
    line.remove_suffix(kFence.size());
    if (line.empty() && text_.ends_with('\n')) text_.pop_back();
    complete = true;
  } else if (!block_ && line.ends_with('\\')) {
    line.remove_suffix(1);
    complete = false;
  }
  text_ += line;
  if (complete) return finish();
  text_ += '\n';
  return std::nullopt;
}

std::optional<std::string> MessageLines::finish() {
  if (!open_) return std::nullopt;
  std::string message = std::move(text_);
  cancel();
  return message;
}

void MessageLines::cancel() {
  open_ = block_ = false;
  text_.clear();
}

}  // namespace tidemill::cli
