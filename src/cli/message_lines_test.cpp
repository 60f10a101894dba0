#include "cli/message_lines.h"

#include <gmock/gmock.h>

namespace tidemill::cli {
namespace {

using testing::Eq;
using testing::Optional;

TEST(MessageLines, OneLineIsAMessage) {
  MessageLines lines;
  EXPECT_THAT(lines.push("Hello"), Optional(Eq("Hello")));
  EXPECT_THAT(lines.push(""), Optional(Eq("")));
  EXPECT_FALSE(lines.finish());
}

TEST(MessageLines, BackslashContinues) {
  MessageLines lines;
  EXPECT_FALSE(lines.push("a\\"));
  EXPECT_TRUE(lines.open());
  EXPECT_FALSE(lines.push("\"\"\"b\\"));  // a fence counts only where a message begins
  EXPECT_THAT(lines.push("c"), Optional(Eq("a\n\"\"\"b\nc")));
  EXPECT_FALSE(lines.open());
}

TEST(MessageLines, FencesHoldABlock) {
  MessageLines lines;
  EXPECT_FALSE(lines.push("\"\"\""));
  EXPECT_FALSE(lines.push("a\\"));
  EXPECT_FALSE(lines.push(""));
  EXPECT_FALSE(lines.push("b"));
  EXPECT_THAT(lines.push("\"\"\""), Optional(Eq("a\\\n\nb")));
  EXPECT_THAT(lines.push("\"\"\"one line\"\"\""), Optional(Eq("one line")));
  EXPECT_FALSE(lines.push("\"\"\"x"));
  EXPECT_THAT(lines.push("y\"\"\""), Optional(Eq("x\ny")));
}

TEST(MessageLines, EndAndCancel) {
  MessageLines lines;
  EXPECT_FALSE(lines.push("a\\"));
  EXPECT_THAT(lines.finish(), Optional(Eq("a\n")));
  EXPECT_FALSE(lines.push("\"\"\""));
  lines.cancel();
  EXPECT_THAT(lines.push("b"), Optional(Eq("b")));
}

}  // namespace
}  // namespace tidemill::cli
