#include "text/byte_alphabet.h"

#include <array>

#include "text/utf8.h"

namespace tidemill {
namespace {

constexpr size_t kAlphabetEnd = 256 + 68;  // one past the largest character

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<int16_t, kAlphabetEnd> byte{};  // -1: not in the alphabet
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte.fill(-1);
  char32_t next = 256;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char32_t character = stands_for_itself(byte) ? byte : next++;
    alphabet.character[byte] = character;
    alphabet.byte[character] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

char32_t byte_to_character(uint8_t byte) { return kAlphabet.character[byte]; }

std::optional<uint8_t> character_to_byte(char32_t character) {
  if (character >= kAlphabetEnd || kAlphabet.byte[character] < 0) return std::nullopt;
  return static_cast<uint8_t>(kAlphabet.byte[character]);
}

std::string token_bytes(std::string_view raw) {
  std::string bytes;
  for (std::string_view rest = raw; !rest.empty();) {
    const Utf8Unit unit = next_utf8(rest);
    const auto byte = character_to_byte(unit.code_point);
    if (!byte) return std::string(raw);
    bytes += static_cast<char>(*byte);
    rest.remove_prefix(unit.size);
  }
  return bytes;
}

}  // namespace tidemill
