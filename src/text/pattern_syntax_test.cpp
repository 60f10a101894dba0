#include "text/pattern_syntax.h"

#include <gtest/gtest.h>

namespace tidemill {
namespace {

TEST(PatternSyntax, KeepsWhatBothLibrariesShare) {
  for (const char* pattern : {"'s|'t", "[A-Za-z]+", "(?:ab)?c*", "a{1,3}", "[^\r\n]x", "\\r\\n\\t",
                              "[!\\[\\\\\\]^&-]", " ?a(?!b)(?=c)", "[一-龥]+", "(a|b)"}) {
    const auto result = pcre2_pattern(pattern);
    ASSERT_TRUE(result) << pattern << ": " << result.error().message;
    EXPECT_EQ(*result, pattern);
  }
}

TEST(PatternSyntax, WritesClassesOut) {
  EXPECT_TRUE(pcre2_pattern("\\s+")->starts_with("[\\x{9}-\\x{d}"));
  EXPECT_TRUE(pcre2_pattern("\\S")->starts_with("[^\\x{9}-\\x{d}"));
  EXPECT_TRUE(pcre2_pattern("[^\\s]")->starts_with("[^\\x{9}-\\x{d}"));
  EXPECT_TRUE(pcre2_pattern("\\p{N}")->starts_with("[\\p{N}\\x{10d40}-\\x{10d49}"));
  EXPECT_TRUE(pcre2_pattern("[\\p{N}]")->starts_with("[\\p{N}\\x{10d40}-\\x{10d49}"));
}

TEST(PatternSyntax, RefusesTheRestByName) {
  const struct {
    const char* pattern;
    const char* construct;
  } cases[] = {
      {"a.b", "."},      {"^a", "^"},           {"a$", "$"},          {"\\w+", "\\w"},
      {"\\h", "\\h"},    {"\\p{Lu}", "\\p{Lu"}, {"\\P{L}", "\\P"},    {"\\p", "\\p"},
      {"[\\S]", "\\S"},  {"[a[b]]", "\"[\""},   {"[a&&b]", "\"&&\""}, {"[]a]", "empty"},
      {"(?i:a)", "(?i"}, {"(?<=a)b", "(?<"},    {"(*UTF)a", "(*U"},   {"a\\", "at the end"},
      {"(?C1)a", "(?C"}, {"\\K", "\\K"},        {"(?", "(?"},         {"\\1", "\\1"},
  };
  for (const auto& [pattern, construct] : cases) {
    const auto result = pcre2_pattern(pattern);
    ASSERT_FALSE(result) << pattern;
    EXPECT_EQ(result.error().code, ErrorCode::kTokenizer);
    EXPECT_NE(result.error().message.find(construct), std::string::npos) << result.error().message;
  }
}

}  // namespace
}  // namespace tidemill
