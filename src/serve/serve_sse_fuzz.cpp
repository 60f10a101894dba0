// Any bytes as the name and data of events: what is read back is what was written.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "serve/sse_reader_for_tests.h"

namespace {

// The data with each of its line ends (CR, LF, CRLF) as one LF.
std::string with_line_feeds(const std::string& data) {
  std::string out;
  for (size_t i = 0; i < data.size(); ++i) {
    if (data[i] == '\n' && i > 0 && data[i - 1] == '\r') continue;
    out += data[i] == '\r' ? '\n' : data[i];
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace tidemill;
  const std::string input(reinterpret_cast<const char*>(bytes), size);
  const size_t name_size = size == 0 ? 0 : bytes[0] % 16;
  const StreamEvent event{.name = input.substr(0, name_size),
                          .data = input.substr(std::min(name_size, size))};
  std::string out;
  append_sse(out, event);
  out += kKeepAlive;
  append_sse(out, {.data = std::string(kStreamDone)});
  const std::vector<StreamEvent> events = read_sse(out);
  if (events.size() != 2 || events[1].data != kStreamDone || !events[1].name.empty()) std::abort();
  if (events[0].data != with_line_feeds(event.data)) std::abort();
  return 0;
}
