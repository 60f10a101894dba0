#include "cli/load/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/atomic_file.h"
#include "base/temp_directory.h"

namespace tidemill::cli {
namespace {

using testing::HasSubstr;

class TraceTest : public testing::Test {
 protected:
  Result<std::vector<TraceItem>> read(std::string_view text) {
    EXPECT_TRUE(write_file(directory_ / "trace.jsonl", text));
    return read_trace(directory_ / "trace.jsonl");
  }

  TempDirectory directory_;
};

TEST_F(TraceTest, SortsAndStartsAtZero) {
  const auto items = read(
      "{\"t\": 12.5, \"prompt\": \"late\"}\n\n"
      "{\"t\": 10, \"prompt_tokens\": 7, \"max_tokens\": 3, \"priority\": -1}\r\n"
      "  \n"
      "{\"t\": 12.5, \"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"id\": 9}");
  ASSERT_TRUE(items) << items.error().message;
  ASSERT_EQ(items->size(), 3u);
  const TraceItem& first = items->front();
  EXPECT_EQ(first.at_s, 0);
  EXPECT_EQ(first.prompt_tokens, 7);
  EXPECT_EQ(first.max_tokens, 3);
  EXPECT_EQ(first.priority, -1);
  EXPECT_FALSE(first.prompt);
  EXPECT_TRUE(first.messages.is_null());
  EXPECT_EQ((*items)[1].at_s, 2.5);
  EXPECT_EQ((*items)[1].prompt, "late");
  EXPECT_EQ((*items)[2].messages[0]["content"], "x");
}

TEST_F(TraceTest, NamesTheLine) {
  for (const char* line :
       {"{", "[]", "3", R"({"prompt": "x"})", R"({"t": "0"})", R"({"t": null})", R"({"t": 1e999})",
        R"({"t": 0, "prompt": 3})", R"({"t": 0, "prompt_tokens": 0})",
        R"({"t": 0, "prompt_tokens": 1.5})", R"({"t": 0, "prompt_tokens": 99999999999})",
        R"({"t": 0, "max_tokens": -1})", R"({"t": 0, "messages": {}})",
        R"({"t": 0, "messages": []})", R"({"t": 0, "priority": "high"})",
        R"({"t": 0, "prompt": "x", "prompt_tokens": 3})", "{\"t\": 0, \"prompt\": \"\xff\"}"}) {
    const auto items = read(std::string("{\"t\": 0}\n\n") + line + "\n");
    ASSERT_FALSE(items) << line;
    EXPECT_THAT(items.error().message, HasSubstr("trace.jsonl:3: ")) << line;
  }
}

TEST_F(TraceTest, RefusesWhatNobodyWouldWaitFor) {
  EXPECT_THAT(read("").error().message, HasSubstr("no requests"));
  EXPECT_THAT(read("{\"t\": 0}\n{\"t\": 1.7e9}\n").error().message, HasSubstr("seconds"));
  EXPECT_EQ(read_trace(directory_ / "none").error().code, ErrorCode::kFileNotFound);
}

}  // namespace
}  // namespace tidemill::cli
