#include "text/normalize.h"

#include <gtest/gtest.h>

namespace tidemill {
namespace {

TEST(NormalizeForEngram, Samples) {
  const struct {
    std::string text;
    std::string expected;  // of Hugging Face tokenizers 0.23
  } cases[] = {
      {" The", "the"},
      {"THE", "the"},
      {"", ""},
      {" ", " "},
      {"\n\n", " "},
      {" \t\r\n ", " "},
      {"\u00a0", " "},
      {"\u3000", " "},
      {"\u00a0\u00a0", " "},
      {"\x0b", ""},
      {"\x0b \x0c", ""},
      {"a\t\n b", "a b"},
      {"  a  ", "a"},
      {"\u0085a\u2028", "a"},
      {"É", "e"},
      {"e\u0301", "e"},
      {"ﬁ", "fi"},
      {"１２", "12"},
      {"Straße", "straße"},
      {"İ", "i"},
      {"ΑΣ", "ασ"},
      {"ার", "র"},  // U+09BE is a spacing mark
      {"⃝", ""},     // U+20DD is an enclosing mark
      {"한", "\u1112\u1161\u11ab"},
      {"\ue000", " "},
      {"a\ue000", "a "},
      {"<｜end▁of▁sentence｜>", "<|end▁of▁sentence|>"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(normalize_for_engram(text), expected) << text;
  }
}

}  // namespace
}  // namespace tidemill
