#include "text/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "text/utf8.h"

namespace tidemill {
namespace {

using testing::ElementsAre;

PreTokenizer compile(std::vector<std::string> patterns) {
  auto result = PreTokenizer::compile(patterns);
  if (!result) ADD_FAILURE() << result.error().message;
  return *std::move(result);
}

// The code points, surrogates apart, that `pattern` matches. Each stands twice in the text, so that
// a piece of one character is a match and every gap is longer.
std::set<char32_t> matched_by(const std::string& pattern) {
  std::string text;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    append_utf8(text, c);
    append_utf8(text, c);
  }
  std::set<char32_t> matched;
  for (const std::string_view piece : compile({pattern}).split(text)) {
    const Utf8Unit unit = next_utf8(piece);
    if (unit.size == piece.size()) matched.insert(unit.code_point);
  }
  return matched;
}

TEST(PreTokenizer, WithoutPatternsTheTextIsOnePiece) {
  const PreTokenizer none = compile({});
  EXPECT_THAT(none.split("a b"), ElementsAre("a b"));
  EXPECT_THAT(none.split(""), ElementsAre());
}

TEST(PreTokenizer, MatchesAndGapsArePieces) {
  EXPECT_THAT(compile({"[0-9]{1,3}"}).split("a1234b"), ElementsAre("a", "123", "4", "b"));
  EXPECT_THAT(compile({"[0-9]{1,3}"}).split("no"), ElementsAre("no"));
}

TEST(PreTokenizer, AlternativesAreTriedInOrder) {
  EXPECT_THAT(compile({"a|ab|b"}).split("ab"), ElementsAre("a", "b"));
}

TEST(PreTokenizer, ALaterPassSeesOnlyItsPiece) {
  // Before a digit the run of spaces is whole, because the piece ends there.
  const std::string spaces = R"(\s+(?!\S)|\s+)";
  EXPECT_THAT(compile({"[0-9]", spaces}).split("   1"), ElementsAre("   ", "1"));
  EXPECT_THAT(compile({spaces}).split("   1"), ElementsAre("  ", " ", "1"));
}

TEST(PreTokenizer, WhiteSpaceIsTheUnicodeProperty) {
  const std::set<char32_t> expected = {0x09,   0x0A,   0x0B,   0x0C,   0x0D,   0x20,   0x85,
                                       0xA0,   0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004,
                                       0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200A, 0x2028,
                                       0x2029, 0x202F, 0x205F, 0x3000};
  EXPECT_EQ(matched_by("\\s"), expected);
  EXPECT_EQ(matched_by("\\S").size(), 0x110000u - 0x800 - expected.size());
}

TEST(PreTokenizer, ClassesAreThoseOfUnicode16) {
  // The counts of DerivedGeneralCategory.txt, Unicode 16.0.0.
  EXPECT_EQ(matched_by("\\p{L}").size(), 141028u);
  EXPECT_EQ(matched_by("\\p{M}").size(), 2501u);
  EXPECT_EQ(matched_by("\\p{N}").size(), 1911u);
  EXPECT_EQ(matched_by("\\p{P}").size(), 855u);
  EXPECT_EQ(matched_by("\\p{S}").size(), 8514u);
}

TEST(PreTokenizer, RefusesBadPatterns) {
  const struct {
    std::string pattern;
    std::string reason;
  } cases[] = {{"(a", "parenthesis"},
               {"a*", "empty string"},
               {"", "empty string"},
               {"(?!a)", "empty string"},
               {"\\w", "\\w is not supported"},
               {"\xff", "UTF-8"},
               {"((a{1,900}){1,900}){1,900}", "too large"},
               {std::string(5000, 'a'), "4096"}};
  for (const auto& [pattern, reason] : cases) {
    const std::vector<std::string> patterns = {"b", pattern};
    const auto result = PreTokenizer::compile(patterns);
    ASSERT_FALSE(result) << pattern;
    EXPECT_EQ(result.error().code, ErrorCode::kTokenizer);
    EXPECT_NE(result.error().message.find("pattern 1"), std::string::npos);
    EXPECT_NE(result.error().message.find(reason), std::string::npos) << result.error().message;
  }
}

TEST(PreTokenizer, ExponentialPatternEnds) {
  const std::string text = std::string(60, 'a') + "b";
  EXPECT_THAT(compile({"(?:a+a+)+c"}).split(text), ElementsAre(text));
}

TEST(PreTokenizer, DeepBacktrackingFallsBackToTheInterpreter) {
  // Each round of the group is remembered: more than the stack of the JIT holds.
  const std::string text(200000, 'a');
  EXPECT_THAT(compile({"(?:a|b(?=c))+"}).split(text + "x"), ElementsAre(text, "x"));
}

TEST(PreTokenizer, PiecesJoinToTheText) {
  const PreTokenizer pre_tokenizer = compile({"\\p{N}{1,3}", "[一-龥]+", " ?\\p{L}+|\\s+(?!\\S)"});
  std::mt19937 random(2);
  const char32_t alphabet[] = {' ', '\n', '1', 'a', 0x4E00, 0x301, 0x1F600, 0x3000, '.'};
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (size_t i = random() % 40; i > 0; --i) append_utf8(text, alphabet[random() % 9]);
    std::string joined;
    for (const std::string_view piece : pre_tokenizer.split(text)) {
      EXPECT_FALSE(piece.empty());
      joined += piece;
    }
    ASSERT_EQ(joined, text);
  }
}

}  // namespace
}  // namespace tidemill
