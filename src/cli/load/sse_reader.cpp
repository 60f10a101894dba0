#include "cli/load/sse_reader.h"

#include <utility>

namespace tidemill::cli {

bool SseReader::take_line(std::string_view line) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (std::exchange(at_start_, false) && line.starts_with(kByteOrderMark)) {
    line.remove_prefix(kByteOrderMark.size());
  }
  if (line.empty()) return true;
  const size_t colon = line.find(':');
  const std::string_view field = line.substr(0, colon);  // "" of a comment
  std::string_view value = colon == std::string_view::npos ? "" : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (field == "event") event_.name = value;
  if (field == "data") {
    if (has_data_) event_.data += '\n';
    event_.data += value;
    has_data_ = true;
  }
  return false;
}

Status SseReader::read(std::string_view bytes, const Handle& handle) {
  while (!bytes.empty()) {
    if (std::exchange(after_cr_, false) && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const size_t end = bytes.find_first_of("\r\n");
    const std::string_view piece = bytes.substr(0, end);
    if (line_.size() + piece.size() + event_.data.size() > max_bytes_) {
      return fail(ErrorCode::kRequest, "an event of the stream is longer than {} bytes",
                  max_bytes_);
    }
    if (end == std::string_view::npos) {
      line_ += piece;
      return {};
    }
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    // Most lines arrive whole: these are not copied.
    if (!line_.empty()) line_ += piece;
    const bool complete = take_line(line_.empty() ? piece : std::string_view(line_));
    line_.clear();
    if (!complete) continue;
    const StreamEvent event = std::exchange(event_, {});
    if (std::exchange(has_data_, false) && !handle(event)) return {};
  }
  return {};
}

}  // namespace tidemill::cli
