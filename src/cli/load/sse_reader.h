// Server-sent events as they arrive, in pieces of any size (HTML standard, 9.2.6).
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "serve/sse.h"

namespace tidemill::cli {

class SseReader {
 public:
  // false: the rest is of no interest.
  using Handle = std::function<bool(const StreamEvent&)>;

  // `max_bytes`: of one event, or of one line that belongs to none.
  explicit SseReader(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Calls handle for each event that these bytes complete. Comments, unknown fields and events
  // without data are skipped; lines end with LF, CR or CRLF. An event that the stream breaks off
  // in the middle is never handed out. Error kRequest: more than max_bytes.
  Status read(std::string_view bytes, const Handle& handle);

 private:
  // Takes a line without its end; true: it was empty and an event is complete.
  bool take_line(std::string_view line);

  size_t max_bytes_;
  std::string line_;  // so far
  bool after_cr_ = false;
  bool at_start_ = true;
  StreamEvent event_;
  bool has_data_ = false;
};

}  // namespace tidemill::cli
