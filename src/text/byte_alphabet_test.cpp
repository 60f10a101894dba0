#include "text/byte_alphabet.h"

#include <gtest/gtest.h>

#include <set>

namespace tidemill {
namespace {

TEST(ByteAlphabet, IsOneToOne) {
  std::set<char32_t> characters;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char32_t character = byte_to_character(static_cast<uint8_t>(byte));
    EXPECT_EQ(character_to_byte(character), byte);
    characters.insert(character);
  }
  EXPECT_EQ(characters.size(), 256u);
  EXPECT_EQ(*characters.rbegin(), 323u);  // 256 + 68 - 1
}

TEST(ByteAlphabet, KnownCharacters) {
  EXPECT_EQ(byte_to_character(' '), U'Ġ');
  EXPECT_EQ(byte_to_character('\n'), U'Ċ');
  EXPECT_EQ(byte_to_character('a'), U'a');
  EXPECT_EQ(byte_to_character(0xAD), 0x143u);  // soft hyphen: the one hole in 174-255 and below
  EXPECT_EQ(character_to_byte(U' '), std::nullopt);
  EXPECT_EQ(character_to_byte(0x10FFFF), std::nullopt);
}

TEST(ByteAlphabet, TokenBytes) {
  EXPECT_EQ(token_bytes("Ġthe"), " the");
  EXPECT_EQ(token_bytes("ä½ł"), "\u4f60");
  EXPECT_EQ(token_bytes("<think>"), "<think>");
  EXPECT_EQ(token_bytes("<｜User｜>"), "<｜User｜>");
  EXPECT_EQ(token_bytes("Ġ｜"), "Ġ｜") << "one foreign character makes the whole string text";
  EXPECT_EQ(token_bytes(""), "");
}

}  // namespace
}  // namespace tidemill
