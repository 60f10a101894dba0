#include <cassert>
#include <charconv>
#include <cmath>
#include <string>
#include <string_view>

#include "text/json.h"

namespace tidemill {
namespace {

// repr(float): the shortest digits that read back as the same value, in plain notation for
// exponents -4 .. 15.
void write_float(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "NaN";
    return;
  }
  if (std::isinf(value)) {
    out += value < 0 ? "-Infinity" : "Infinity";
    return;
  }
  char digits[32];
  const auto written = [&](std::chars_format format) {
    const auto end = std::to_chars(digits, digits + sizeof digits, value, format).ptr;
    return std::string_view(digits, static_cast<size_t>(end - digits));
  };
  std::string_view text = written(std::chars_format::scientific);
  int exponent = 0;
  const size_t sign = text.find('e') + 1;
  const size_t first_digit = sign + (text[sign] == '+');
  std::from_chars(text.data() + first_digit, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent > 15) {
    out += text;
    return;
  }
  text = written(std::chars_format::fixed);
  out += text;
  if (text.find('.') == text.npos) out += ".0";
}

void write_string(std::string& out, std::string_view text) {
  out += '"';
  append_json_escaped(out, text);
  out += '"';
}

void write(std::string& out, const Json& value, int depth) {
  assert(depth <= kMaxJsonDepth);
  std::string_view separator;
  switch (value.type()) {
    case Json::value_t::object:
      out += '{';
      for (const auto& [key, member] : value.items()) {
        out += std::exchange(separator, ", ");
        write_string(out, key);
        out += ": ";
        write(out, member, depth + 1);
      }
      out += '}';
      return;
    case Json::value_t::array:
      out += '[';
      for (const Json& element : value) {
        out += std::exchange(separator, ", ");
        write(out, element, depth + 1);
      }
      out += ']';
      return;
    case Json::value_t::string:
      return write_string(out, value.get_ref<const std::string&>());
    case Json::value_t::boolean:
      out += value.get<bool>() ? "true" : "false";
      return;
    case Json::value_t::number_integer:
      out += std::to_string(value.get<int64_t>());
      return;
    case Json::value_t::number_unsigned:
      out += std::to_string(value.get<uint64_t>());
      return;
    case Json::value_t::number_float:
      return write_float(out, value.get<double>());
    case Json::value_t::binary: {  // digits of a large integer: parse_json
      const auto& digits = value.get_binary();
      out.append(digits.begin(), digits.end());
      return;
    }
    case Json::value_t::null:
    case Json::value_t::discarded:
      out += "null";
      return;
  }
}

}  // namespace

std::string python_json(const Json& value) {
  std::string out;
  write(out, value, 0);
  return out;
}

void append_json_escaped(std::string& out, std::string_view text) {
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
}

}  // namespace tidemill
