#include "cli/load/answer_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemill::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class AnswerReaderTest : public testing::Test {
 protected:
  bool take(const char* data, double at_s = 0) { return reader_.take({"", data}, at_s); }

  LoadRecord record_;
  AnswerReader reader_{record_};
};

TEST_F(AnswerReaderTest, CountsChunksWithContentOnly) {
  EXPECT_TRUE(take(R"({"choices": [{"delta": {"role": "assistant", "content": ""}}]})", 1));
  EXPECT_TRUE(take(R"({"choices": [{"delta": {"content": null, "reasoning_content": ""}}]})", 2));
  EXPECT_TRUE(take(R"({"choices": [{"delta": {"reasoning_content": "a"}}]})", 3));
  EXPECT_TRUE(take(R"({"choices": [{"delta": {"reasoning": "a"}}]})", 4));
  EXPECT_TRUE(take(R"({"choices": [{"delta": {"content": "a"}}], "usage": null})", 5));
  EXPECT_TRUE(take(R"({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]})", 6));
  EXPECT_TRUE(take(R"({"choices": [{"text": "a"}, {"text": "b"}]})", 7));
  EXPECT_TRUE(take(R"({"choices": [{"text": ""}]})", 8));
  EXPECT_TRUE(take(R"({"choices": [{"delta": {"tool_calls": []}}]})", 9));
  EXPECT_TRUE(take(R"({"choices": [], "other": 1})", 10));
  EXPECT_TRUE(take("", 11));
  EXPECT_THAT(record_.chunks_s, ElementsAre(3, 4, 5, 6, 7));
  EXPECT_FALSE(reader_.over());
}

TEST_F(AnswerReaderTest, EndsWithDone) {
  EXPECT_TRUE(take(R"({"choices": [{"delta": {}, "finish_reason": "length"}]})"));
  EXPECT_FALSE(take("[DONE]"));
  EXPECT_TRUE(reader_.over());
  EXPECT_TRUE(record_.ok());
  EXPECT_EQ(record_.finish, "length");
  EXPECT_FALSE(take(R"({"choices": [{"text": "late"}]})"));
  EXPECT_TRUE(record_.chunks_s.empty());
}

TEST_F(AnswerReaderTest, TheLastUsageCounts) {
  EXPECT_TRUE(take(R"({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}})"));
  EXPECT_TRUE(take(R"({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage":
      {"prompt_tokens": 9, "completion_tokens": 4, "prompt_cache_hit_tokens": 5}})"));
  EXPECT_TRUE(record_.has_usage);
  EXPECT_EQ(record_.prompt_tokens, 9);
  EXPECT_EQ(record_.output_tokens(), 4);
  EXPECT_EQ(record_.cached_tokens, 5);
  EXPECT_TRUE(take(R"({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": -4,
      "prompt_tokens_details": {"cached_tokens": 6}}})"));
  EXPECT_EQ(record_.cached_tokens, 6);
  EXPECT_EQ(record_.output_tokens(), 0);  // nonsense is nothing
  EXPECT_TRUE(take(R"({"choices": [], "usage": {"prompt_tokens": "9",
      "prompt_tokens_details": null}})"));
  EXPECT_EQ(record_.prompt_tokens, 0);
}

TEST_F(AnswerReaderTest, WithoutUsageAChunkIsAToken) {
  EXPECT_TRUE(take(R"({"choices": [{"text": "a"}]})", 1));
  EXPECT_TRUE(take(R"({"choices": [{"text": "b"}]})", 2));
  EXPECT_EQ(record_.output_tokens(), 2);
}

TEST_F(AnswerReaderTest, AnErrorEventIsTheServers) {
  EXPECT_FALSE(take(R"({"error": {"message": "out of blocks", "code": 500}})"));
  EXPECT_EQ(record_.outcome, LoadOutcome::kError);
  EXPECT_EQ(record_.reason, "server_error");
  EXPECT_EQ(record_.detail, "out of blocks");
  EXPECT_FALSE(take("[DONE]"));
  EXPECT_FALSE(record_.ok());
}

TEST_F(AnswerReaderTest, SoIsANamedOne) {
  EXPECT_FALSE(reader_.take({"error", R"({"detail": "x"})"}, 0));
  EXPECT_EQ(record_.reason, "server_error");
}

TEST(AnswerReader, GarbageIsABadAnswer) {
  for (const char* data : {"{", "nonsense", "[]", "3", "\"x\"", "{\"a\": \"\xff\"}"}) {
    LoadRecord record;
    AnswerReader reader(record);
    EXPECT_FALSE(reader.take({"", data}, 0)) << data;
    EXPECT_EQ(record.reason, "bad_answer");
    EXPECT_FALSE(record.detail.empty());
  }
}

TEST(AnswerReader, UnexpectedTypesAreSkipped) {
  for (const char* data :
       {R"({})", R"({"choices": 3})", R"({"choices": [3, null, []]})", R"({"usage": []})",
        R"({"choices": [{"delta": 3, "finish_reason": 4, "text": {}}]})", R"({"error": null})",
        R"({"choices": [{"delta": {"content": 3, "tool_calls": {}}}]})"}) {
    LoadRecord record;
    AnswerReader reader(record);
    EXPECT_TRUE(reader.take({"", data}, 0)) << data;
    EXPECT_TRUE(record.chunks_s.empty()) << data;
  }
}

TEST(ErrorText, FindsTheWords) {
  EXPECT_EQ(error_text(R"({"error": {"message": "a", "type": "t"}})"), "a");
  EXPECT_EQ(error_text(R"({"error": "b"})"), "b");
  EXPECT_EQ(error_text(R"({"object": "error", "message": "c"})"), "c");
  EXPECT_EQ(error_text(R"({"detail": "d"})"), "d");
  EXPECT_EQ(error_text(R"({"code": 3})"), R"({"code": 3})");
  EXPECT_EQ(error_text("<html>"), "<html>");
  EXPECT_EQ(error_text(""), "");
}

TEST(ErrorText, IsCutAtACharacter) {
  std::string text(kMaxLoadDetail - 1, 'x');
  EXPECT_EQ(error_text(text + "\xc3\xa9"), text);
  EXPECT_EQ(error_text(text + "yz"), text + "y");
}

TEST(ErrorText, IsValidUtf8) {
  EXPECT_EQ(error_text("a\xff z"), "a\xef\xbf\xbd z");
  for (const char byte : {'\xff', '\x80'}) {
    const std::string text = error_text(std::string(1000, byte));
    EXPECT_LE(text.size(), kMaxLoadDetail);
    EXPECT_TRUE(parse_json(fmt::format("\"{}\"", text)));
  }
}

}  // namespace
}  // namespace tidemill::cli
