#include "text/added_tokens.h"

#include <gtest/gtest.h>

namespace tidemill {
namespace {

// "offset:id" of the first match, or "-".
std::string first(const AddedTokens& tokens, std::string_view text) {
  const auto match = tokens.find(text);
  return match ? std::to_string(match->offset) + ":" + std::to_string(match->id) : "-";
}

TEST(AddedTokens, LeftmostThenLongest) {
  const AddedTokens tokens({{"ab", 1}, {"abcd", 2}, {"bcde", 3}, {"x", 4}, {"｜", 5}});
  EXPECT_EQ(first(tokens, "zabc"), "1:1");
  EXPECT_EQ(first(tokens, "zabcde"), "1:2");
  EXPECT_EQ(first(tokens, "abce"), "0:1");
  EXPECT_EQ(first(tokens, "bcdx"), "3:4");
  EXPECT_EQ(first(tokens, "bcde"), "0:3");
  EXPECT_EQ(first(tokens, "\uFF5B｜"), "3:5") << "shares its first two bytes";
  EXPECT_EQ(first(tokens, "a"), "-");
  EXPECT_EQ(first(tokens, ""), "-");
  EXPECT_EQ(first(AddedTokens(), "ab"), "-");
}

TEST(AddedTokens, IdNeedsTheWholeSpelling) {
  const AddedTokens tokens({{"ab", 1}, {"abcd", 2}});
  EXPECT_EQ(tokens.id("ab"), 1);
  EXPECT_EQ(tokens.id("abcd"), 2);
  EXPECT_EQ(tokens.id("abc"), std::nullopt);
  EXPECT_EQ(tokens.id("a"), std::nullopt);
  EXPECT_EQ(tokens.id(""), std::nullopt);
}

}  // namespace
}  // namespace tidemill
