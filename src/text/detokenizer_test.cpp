#include <gtest/gtest.h>

#include <random>

#include "text/tokenizer_for_tests.h"
#include "text/utf8.h"

namespace tidemill {
namespace {

// Micro's token of a single byte.
int32_t byte_token(uint8_t byte) { return 3 + byte; }

std::string stream(const Tokenizer& tokenizer, std::span<const int32_t> ids) {
  Detokenizer detokenizer(tokenizer);
  std::string joined;
  for (const int32_t id : ids) {
    const std::string part = detokenizer.push(id);
    EXPECT_TRUE(is_valid_utf8(part));
    joined += part;
  }
  return joined + detokenizer.finish();
}

TEST(Detokenizer, HoldsACutCharacter) {
  const Tokenizer* tokenizer = micro_tokenizer();
  ASSERT_NE(tokenizer, nullptr);
  Detokenizer detokenizer(*tokenizer);
  EXPECT_EQ(detokenizer.push(byte_token(0xF0)), "");
  EXPECT_EQ(detokenizer.push(byte_token(0x9F)), "");
  EXPECT_EQ(detokenizer.push(byte_token(0x98)), "");
  EXPECT_EQ(detokenizer.push(byte_token(0x80)), "\U0001F600");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, ReplacesAsSoonAsCertain) {
  const Tokenizer* tokenizer = micro_tokenizer();
  ASSERT_NE(tokenizer, nullptr);
  Detokenizer detokenizer(*tokenizer);
  EXPECT_EQ(detokenizer.push(byte_token(0x80)), "\uFFFD");
  EXPECT_EQ(detokenizer.push(byte_token(0xE4)), "");
  EXPECT_EQ(detokenizer.push(byte_token('a')),
            "\uFFFD"
            "a");
  EXPECT_EQ(detokenizer.push(byte_token(0xE4)), "");
  EXPECT_EQ(detokenizer.push(byte_token(0xBD)), "");
  EXPECT_EQ(detokenizer.finish(), "\uFFFD") << "once, however many bytes were there";
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, SkipsSpecialTokensOnRequest) {
  const Tokenizer* tokenizer = micro_tokenizer();
  ASSERT_NE(tokenizer, nullptr);
  Detokenizer all(*tokenizer);
  Detokenizer skipping(*tokenizer, true);
  EXPECT_EQ(all.push(1), "<｜end▁of▁sentence｜>");
  EXPECT_EQ(skipping.push(1), "");
  EXPECT_EQ(skipping.push(-1), "");
}

// Korean, ideographs, a joined emoji and accents, byte by byte and as the tokenizer cuts them.
TEST(Detokenizer, ValidTextGivesNoReplacement) {
  const std::string text = "한국어 你好 👩🏽‍💻 café 🏴󠁧󠁢󠁥󠁮󠁧󠁿";
  for (const Tokenizer* tokenizer : {micro_tokenizer(), mini_tokenizer()}) {
    ASSERT_NE(tokenizer, nullptr);
    EXPECT_EQ(stream(*tokenizer, tokenizer->encode(text)), text);
  }
  std::vector<int32_t> bytes;
  for (const char c : text) bytes.push_back(byte_token(static_cast<uint8_t>(c)));
  EXPECT_EQ(stream(*micro_tokenizer(), bytes), text);
}

TEST(Detokenizer, StreamEqualsDecode) {
  const Tokenizer* tokenizer = micro_tokenizer();
  ASSERT_NE(tokenizer, nullptr);
  std::mt19937 random(3);
  // Bytes at which UTF-8 changes its mind, between whole tokens.
  const uint8_t edges[] = {0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xDF,
                           0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids;
    for (size_t i = random() % 12; i > 0; --i) {
      ids.push_back(random() % 4 == 0 ? static_cast<int32_t>(random() % 320)
                                      : byte_token(edges[random() % std::size(edges)]));
    }
    ASSERT_EQ(stream(*tokenizer, ids), tokenizer->decode(ids));
  }
}

}  // namespace
}  // namespace tidemill
