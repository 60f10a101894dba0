// UTF-8 as the Unicode standard defines it: no surrogates, no overlong forms, at most U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tidemill {

inline constexpr char32_t kReplacementCharacter = 0xFFFD;

struct Utf8Unit {
  enum class Kind {
    kCharacter,
    kInvalid,     // stands for one U+FFFD: a maximal subpart (Unicode 3.9, as in Python and Rust)
    kIncomplete,  // the bytes end inside what may still become a character
  } kind;
  size_t size;          // bytes, at least 1
  char32_t code_point;  // U+FFFD unless kCharacter
};

// First unit of `bytes`, which must not be empty.
Utf8Unit next_utf8(std::string_view bytes);

bool is_valid_utf8(std::string_view bytes);

// Python's bytes.decode("utf-8", "replace"); an incomplete end is one U+FFFD too.
std::string replace_invalid_utf8(std::string_view bytes);

void append_utf8(std::string& out, char32_t code_point);

}  // namespace tidemill
