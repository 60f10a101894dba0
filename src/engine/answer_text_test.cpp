#include "engine/answer_text.h"

#include <gtest/gtest.h>

#include "text/tokenizer_for_tests.h"

namespace tidemill {
namespace {

struct Result {
  std::string text;
  bool stopped = false;
  size_t tokens = 0;  // taken
};

// Pushes the tokens one by one; what was handed out may never be taken back.
Result run(const std::vector<int32_t>& tokens, const std::vector<std::string>& stop,
           AnswerStart start = AnswerStart::kContent) {
  AnswerText answer(*mini_tokenizer(), stop, start);
  Result result;
  for (const int32_t token : tokens) {
    ++result.tokens;
    result.stopped = answer.push(token, result.text);
    if (result.stopped) return result;
  }
  answer.finish(result.text);
  return result;
}

std::vector<int32_t> encode(std::string_view text) { return mini_tokenizer()->encode(text); }

TEST(AnswerText, IsTheDecodedText) {
  const std::string text = "Größe: 日本語 🙂 and\n\nplain words";
  EXPECT_EQ(run(encode(text), {}).text, text);
  EXPECT_EQ(run(encode(text), {"never there"}).text, text);
}

TEST(AnswerText, EndsBeforeAStopStringHoweverTokensCutIt) {
  const std::string text = "one two STOP three";
  for (const std::string stop : {"STOP", " STOP", "two STOP", "OP th", "o"}) {
    const Result result = run(encode(text), {stop});
    EXPECT_TRUE(result.stopped) << stop;
    EXPECT_EQ(result.text, text.substr(0, text.find(stop))) << stop;
  }
  // Byte by byte, as tokens that are single characters.
  std::vector<int32_t> letters;
  for (const char c : text) {
    const auto ids = encode(std::string(1, c));
    letters.insert(letters.end(), ids.begin(), ids.end());
  }
  const Result result = run(letters, {"two STOP"});
  EXPECT_EQ(result.text, "one ");
  EXPECT_EQ(result.tokens, std::string("one two STOP").size());
}

TEST(AnswerText, WhatOnlyBeginsLikeAStopStringComesOut) {
  EXPECT_EQ(run(encode("a STO"), {"STOP"}).text, "a STO");
  EXPECT_EQ(run(encode("aaab"), {"aaaa", "aab!"}).text, "aaab");
  EXPECT_EQ(run(encode("né"), {"nè"}).text, "né");  // the same first byte
}

TEST(AnswerText, TheFirstOfSeveralCounts) {
  EXPECT_EQ(run(encode("say end or stop"), {"stop", "end"}).text, "say ");
}

TEST(AnswerText, ReasoningIsNotSearched) {
  const int32_t end = *mini_tokenizer()->added_token("</think>");
  std::vector<int32_t> tokens = encode("I stop here");
  tokens.push_back(end);
  const auto rest = encode("Yes. stop it");
  tokens.insert(tokens.end(), rest.begin(), rest.end());
  const Result thinking = run(tokens, {"stop"}, AnswerStart::kReasoning);
  EXPECT_TRUE(thinking.stopped);
  EXPECT_EQ(thinking.text, "I stop here</think>Yes. ");
  EXPECT_EQ(run(tokens, {"stop"}).text, "I ");
}

TEST(AnswerText, ACharacterThatNeverEndsIsReplacedOnce) {
  const auto tokens = encode("🙂");
  ASSERT_GT(tokens.size(), 1u) << "the test needs a character of several tokens";
  const std::vector<int32_t> cut(tokens.begin(), tokens.end() - 1);
  EXPECT_EQ(run(cut, {}).text, "\uFFFD");
  EXPECT_EQ(run(cut, {"x"}).text, "\uFFFD");
}

}  // namespace
}  // namespace tidemill
