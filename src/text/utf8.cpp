#include "text/utf8.h"

#include <cstdint>
#include <cstring>

namespace tidemill {
namespace {

// What a lead byte demands (Unicode 3.9, table 3-7): the length of the character and the range of
// its second byte. Third and fourth bytes are always 80..BF.
struct Lead {
  size_t length;  // 0: no character starts with this byte
  uint8_t second_min;
  uint8_t second_max;
};

Lead classify(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

// Length of the leading ASCII bytes of `bytes`, eight at a time.
size_t ascii_prefix(std::string_view bytes) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  size_t size = 0;
  for (; size + 8 <= bytes.size(); size += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + size, 8);
    if ((word & kHighBits) != 0) break;
  }
  while (size < bytes.size() && static_cast<uint8_t>(bytes[size]) < 0x80) ++size;
  return size;
}

}  // namespace

Utf8Unit next_utf8(std::string_view bytes) {
  using Kind = Utf8Unit::Kind;
  const auto first = static_cast<uint8_t>(bytes[0]);
  const Lead lead = classify(first);
  if (lead.length == 0) return {Kind::kInvalid, 1, kReplacementCharacter};
  if (lead.length == 1) return {Kind::kCharacter, 1, first};

  char32_t code_point = first & (0x7Fu >> lead.length);
  for (size_t i = 1; i < lead.length; ++i) {
    if (i == bytes.size()) return {Kind::kIncomplete, i, kReplacementCharacter};
    const auto byte = static_cast<uint8_t>(bytes[i]);
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xBF;
    if (byte < min || byte > max) return {Kind::kInvalid, i, kReplacementCharacter};
    code_point = code_point << 6 | (byte & 0x3Fu);
  }
  return {Kind::kCharacter, lead.length, code_point};
}

bool is_valid_utf8(std::string_view bytes) {
  while (true) {
    bytes.remove_prefix(ascii_prefix(bytes));
    if (bytes.empty()) return true;
    const Utf8Unit unit = next_utf8(bytes);
    if (unit.kind != Utf8Unit::Kind::kCharacter) return false;
    bytes.remove_prefix(unit.size);
  }
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Unit unit = next_utf8(bytes);
    if (unit.kind == Utf8Unit::Kind::kCharacter) {
      out += bytes.substr(0, unit.size);
    } else {
      append_utf8(out, kReplacementCharacter);
    }
    bytes.remove_prefix(unit.size);
  }
  return out;
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto tail = [&](int shift) {
    out += static_cast<char>(0x80 | (code_point >> shift & 0x3F));
  };
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xC0 | code_point >> 6);
    tail(0);
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xE0 | code_point >> 12);
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | code_point >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace tidemill
