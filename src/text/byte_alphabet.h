// The byte-level alphabet of GPT-2: each of the 256 bytes has a printable character, so that a
// vocabulary of byte strings can be written as text ("Ġthe" is " the").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tidemill {

// Bytes 33-126, 161-172 and 174-255 stand for themselves; the other 68 are U+0100 onwards.
char32_t byte_to_character(uint8_t byte);
std::optional<uint8_t> character_to_byte(char32_t character);

// The bytes that a vocabulary string stands for. A string with any character outside the alphabet
// (a special token such as "<｜User｜>") stands for its own UTF-8, as in Hugging Face's decoder.
std::string token_bytes(std::string_view raw);

}  // namespace tidemill
