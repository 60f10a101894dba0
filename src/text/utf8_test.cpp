#include "text/utf8.h"

#include <gtest/gtest.h>

namespace tidemill {
namespace {

using namespace std::string_literals;

TEST(Utf8, EveryCodePointRoundTrips) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    std::string bytes;
    append_utf8(bytes, c);
    const bool surrogate = c >= 0xD800 && c <= 0xDFFF;
    ASSERT_EQ(is_valid_utf8(bytes), !surrogate) << static_cast<uint32_t>(c);
    if (surrogate) continue;
    const Utf8Unit unit = next_utf8(bytes);
    ASSERT_EQ(unit.kind, Utf8Unit::Kind::kCharacter);
    ASSERT_EQ(unit.size, bytes.size());
    ASSERT_EQ(unit.code_point, c);
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const Utf8Unit part = next_utf8(std::string_view(bytes).substr(0, cut));
      ASSERT_EQ(part.kind, Utf8Unit::Kind::kIncomplete);
      ASSERT_EQ(part.size, cut);
    }
  }
}

TEST(Utf8, ReplacesMaximalSubparts) {
  const std::string r = "\uFFFD";
  const struct {
    std::string bytes;
    std::string expected;  // of Python's bytes.decode("utf-8", "replace")
  } cases[] = {
      {"", ""},
      {"plain", "plain"},
      {"a\x80z"s, "a" + r + "z"},
      {"\xc0\xaf"s, r + r},                  // overlong
      {"\xe0\x80\xaf"s, r + r + r},          // overlong
      {"\xed\xa0\x80"s, r + r + r},          // surrogate
      {"\xf4\x90\x80\x80"s, r + r + r + r},  // above U+10FFFF
      {"\xf5\x80"s, r + r},                  // never a lead byte
      {"\xe4\xbd"s
       "a"s,
       r + "a"},                                // cut by a letter
      {"\xe4\xbd\xe4\xbd\xa0"s, r + "\u4f60"},  // cut by a character
      {"\xf0\x9f\x98"s, r},                     // cut by the end
      {"\xf0\x9f\x98\xf0\x9f\x98\x80"s, r + "\U0001F600"},
      {"\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64"s,  // Unicode 3.9, table 3-11
       "a" + r + r + r + "b" + r + "c" + r + r + "d"},
      {"\xff\x00\xfe"s, r + "\0"s + r},
  };
  for (const auto& [bytes, expected] : cases) {
    EXPECT_EQ(replace_invalid_utf8(bytes), expected);
    EXPECT_EQ(is_valid_utf8(bytes), bytes == expected);
  }
}

TEST(Utf8, FindsAFaultBehindLongAsciiText) {
  for (size_t size = 0; size < 40; ++size) {
    EXPECT_TRUE(is_valid_utf8(std::string(size, 'x') + "\u00e9")) << size;
    EXPECT_FALSE(is_valid_utf8(std::string(size, 'x') + "\xe9")) << size;
  }
}

}  // namespace
}  // namespace tidemill
