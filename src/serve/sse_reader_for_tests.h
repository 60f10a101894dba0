// Reads server-sent events back as the HTML standard says (9.2.6), for tests.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/sse.h"

namespace tidemill {

inline std::vector<StreamEvent> read_sse(std::string_view bytes) {
  std::vector<StreamEvent> events;
  StreamEvent event;
  bool has_data = false;
  while (!bytes.empty()) {
    const size_t end = bytes.find_first_of("\r\n");
    if (end == std::string_view::npos) break;  // not a whole line
    const std::string_view line = bytes.substr(0, end);
    const bool is_pair = bytes.substr(end, 2) == "\r\n";
    bytes.remove_prefix(end + (is_pair ? 2 : 1));
    if (line.empty()) {
      if (has_data) events.push_back(event);
      event = {};
      has_data = false;
      continue;
    }
    const size_t colon = line.find(':');
    if (colon == 0) continue;  // a comment
    const std::string_view field = line.substr(0, colon);
    std::string_view value = colon == std::string_view::npos ? "" : line.substr(colon + 1);
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (field == "event") event.name = value;
    if (field != "data") continue;
    if (has_data) event.data += '\n';
    event.data += value;
    has_data = true;
  }
  return events;
}

}  // namespace tidemill
