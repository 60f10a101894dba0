#include "engine/named_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidemill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(NamedOptions, SetsEveryKindOfField) {
  Options options;
  for (const auto& [key, value] : {std::pair{"model", "/a b"},
                                   {"threads", "3"},
                                   {"context", "4096"},
                                   {"step_ms", "2.5"},
                                   {"drafts", "fixed:2"},
                                   {"prefix_cache", "false"},
                                   {"confidence_temperatures", "1,0.5"}}) {
    EXPECT_TRUE(set_option(options, key, value)) << key;
  }
  EXPECT_EQ(options.model, "/a b");
  EXPECT_EQ(options.threads, 3);
  EXPECT_EQ(options.context, 4096);
  EXPECT_EQ(options.step_ms, 2.5);
  EXPECT_EQ(options.drafts, "fixed:2");
  EXPECT_FALSE(options.prefix_cache);
  EXPECT_THAT(options.confidence_temperatures, ElementsAre(1.0f, 0.5f));
  EXPECT_TRUE(set_option(options, "confidence_temperatures", ""));
  EXPECT_TRUE(options.confidence_temperatures.empty());
}

TEST(NamedOptions, SaysWhatIsWrong) {
  Options options;
  options.context = 77;
  const auto error_of = [&](std::string_view key, std::string_view value) {
    const Status status = set_option(options, key, value);
    EXPECT_FALSE(status) << key << " " << value;
    if (status) return std::string();
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    return status.error().message;
  };
  EXPECT_THAT(error_of("contexts", "1"), HasSubstr("contexts"));
  EXPECT_THAT(error_of("", ""), HasSubstr("grammar_depth"));
  for (const char* value :
       {"", " 1", "1 ", "1.5", "0x10", "-1", "16777217", "9223372036854775808", "1e3"}) {
    EXPECT_THAT(error_of("context", value), HasSubstr("a whole number from 0 to 16777216"))
        << value;
  }
  for (const char* value : {"", "nan", "inf", "-1", "1,5"}) {
    EXPECT_THAT(error_of("step_ms", value), HasSubstr("a number >= 0")) << value;
  }
  for (const char* value : {",", "1,", "1,,2", ",1", "x", "1;2", "inf"}) {
    EXPECT_THAT(error_of("confidence_temperatures", value), HasSubstr("commas")) << value;
  }
  EXPECT_THAT(error_of("prefix_cache", "1"), HasSubstr("true or false"));
  EXPECT_THAT(error_of("model", ""), HasSubstr("directory"));
  EXPECT_EQ(options.context, 77);
}

TEST(NamedOptions, KnowsEveryField) {
  // One line each; a new field of Options belongs into the table.
  const std::string help = option_help();
  EXPECT_EQ(std::count(help.begin(), help.end(), '\n'), 29);
}

}  // namespace
}  // namespace tidemill
