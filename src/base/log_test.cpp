#include "base/log.h"

#include <gmock/gmock.h>

#include "base/escape.h"

namespace tidemill {
namespace {

TEST(Log, WritesOneLineToStderrAndNothingToStdout) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  log_warning("cannot read {}", "odd\nname\x1b[2J");
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::EndsWith("cannot read odd\\nname\\x1b[2J\n"));
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

TEST(Log, DropsEventsBelowTheLevel) {
  const LogLevel before = log_level();
  EXPECT_EQ(before, LogLevel::kWarning);
  testing::internal::CaptureStderr();
  log_info("quiet");
  set_log_level(LogLevel::kOff);
  log_error("quiet");
  set_log_level(LogLevel::kDebug);
  log_debug("loud {}", 7);
  set_log_level(before);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, testing::HasSubstr("debug loud 7"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("quiet")));
}

TEST(EscapeControl, KeepsTextAndUtf8) {
  EXPECT_EQ(escape_control("plain é 水"), "plain é 水");
  EXPECT_EQ(escape_control(std::string_view("a\tb\r\n\0\x7f", 7)), "a\\tb\\r\\n\\x00\\x7f");
}

}  // namespace
}  // namespace tidemill
