// Text of unknown origin on one terminal line.
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

namespace tidemill {

// Newline, carriage return and tab become \n, \r, \t; other control bytes become \xNN. All other
// bytes, UTF-8 included, stay as they are.
inline std::string escape_control(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace tidemill
