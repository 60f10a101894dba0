#include "serve/sse.h"

namespace tidemill {

void append_sse(std::string& out, const StreamEvent& event) {
  if (!event.name.empty()) {
    out += "event: ";
    for (const char c : event.name) {
      if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7f) out += c;
    }
    out += '\n';
  }
  out += "data: ";
  for (size_t i = 0; i < event.data.size(); ++i) {
    const char c = event.data[i];
    if (c != '\n' && c != '\r') {
      out += c;
      continue;
    }
    if (c == '\r' && i + 1 < event.data.size() && event.data[i + 1] == '\n') ++i;
    out += "\ndata: ";
  }
  out += "\n\n";
}

}  // namespace tidemill
