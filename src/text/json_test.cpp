#include "text/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace tidemill {
namespace {

using testing::HasSubstr;

// As json.dumps(json.loads(text), ensure_ascii=False) of Python.
std::string rewritten(std::string_view text) {
  const Result<Json> value = parse_json(text);
  return value ? python_json(*value) : value.error().message;
}

TEST(PythonJson, Layout) {
  EXPECT_EQ(rewritten(R"({"b":1,"a":[1,2,{}],"c":[]})"), R"({"b": 1, "a": [1, 2, {}], "c": []})");
  EXPECT_EQ(rewritten(" [ true , false , null ] "), "[true, false, null]");
}

TEST(PythonJson, Floats) {
  EXPECT_EQ(rewritten("[1.50, 1e3, 1.0, 0.1, -0.0, 5e-324]"),
            "[1.5, 1000.0, 1.0, 0.1, -0.0, 5e-324]");
  EXPECT_EQ(rewritten("[1e15, 1e16, 1e-4, 1e-5, 123456789012345680.0, 9007199254740993.0]"),
            "[1000000000000000.0, 1e+16, 0.0001, 1e-05, 1.2345678901234568e+17, "
            "9007199254740992.0]");
  EXPECT_EQ(rewritten("[1e22, 1e23, 1.7976931348623157e308, 2.5e-100]"),
            "[1e+22, 1e+23, 1.7976931348623157e+308, 2.5e-100]");
  EXPECT_EQ(python_json(std::numeric_limits<double>::infinity()), "Infinity");
  EXPECT_EQ(python_json(-std::numeric_limits<double>::infinity()), "-Infinity");
  EXPECT_EQ(python_json(std::numeric_limits<double>::quiet_NaN()), "NaN");
}

TEST(PythonJson, IntegersOfAnySize) {
  EXPECT_EQ(rewritten("[0, -0, 18446744073709551615, -9223372036854775808]"),
            "[0, 0, 18446744073709551615, -9223372036854775808]");
  EXPECT_EQ(rewritten("[18446744073709551616, -123456789012345678901234567890]"),
            "[18446744073709551616, -123456789012345678901234567890]");
  EXPECT_FALSE(parse_json("18446744073709551616")->is_number());
}

TEST(PythonJson, Strings) {
  EXPECT_EQ(rewritten(R"("é<>\/\u00e9\ud83c\udf0a")"), "\"é<>/é🌊\"");
  EXPECT_EQ(rewritten(R"("\"\\\n\r\t\b\f\u0001\u001f\u007f")"),
            "\"\\\"\\\\\\n\\r\\t\\b\\f\\u0001\\u001f\x7f\"");
  EXPECT_EQ(python_json(std::string("a\0b", 3)), R"("a\u0000b")");
}

TEST(ParseJson, OfARepeatedKeyTheLastValueCountsAtTheFirstPlace) {
  EXPECT_EQ(rewritten(R"({"a":1,"b":{"c":1,"c":2},"a":[3],"d":4,"a":5})"),
            R"({"a": 5, "b": {"c": 2}, "d": 4})");
}

TEST(ParseJson, Malformed) {
  for (const char* text :
       {"", " ", "{", "[1", "[1,]", "{\"a\":}", "{\"a\" 1}", "tru", "01", "1.", "\"a", "\"\n\"",
        "\"\\x\"", "\"\\ud800\"", "[] []", "NaN", "\"\xff\"", "\"\xed\xa0\x80\"", "\xef\xbb"}) {
    const Result<Json> value = parse_json(text);
    ASSERT_FALSE(value) << text;
    EXPECT_EQ(value.error().code, ErrorCode::kRequest);
    EXPECT_THAT(value.error().message, HasSubstr("malformed JSON near byte")) << text;
  }
  EXPECT_THAT(rewritten("[1e400]"), HasSubstr("number beyond the range of a double"));
}

TEST(ParseJson, Depth) {
  const auto nested = [](int depth) {
    const auto levels = static_cast<size_t>(depth);
    return std::string(levels, '[') + std::string(levels, ']');
  };
  EXPECT_EQ(rewritten(nested(kMaxJsonDepth)), nested(kMaxJsonDepth));
  EXPECT_THAT(rewritten(nested(kMaxJsonDepth + 1)), HasSubstr("deeper than 128"));
  EXPECT_THAT(rewritten(std::string(10'000'000, '[')), HasSubstr("deeper than 128"));

  const Json three = *parse_json(R"([{"a": []}])");
  EXPECT_FALSE(is_deeper_than(three, 3));
  EXPECT_TRUE(is_deeper_than(three, 2));
}

TEST(ParseJson, ManyKeysCostLinearTime) {
  std::string text = "{";
  for (int i = 0; i < 300'000; ++i) text += fmt::format("\"{}\":0,", i % 200'000);
  text.back() = '}';
  const Result<Json> value = parse_json(text);
  ASSERT_TRUE(value);
  EXPECT_EQ(value->size(), 200'000u);
}

}  // namespace
}  // namespace tidemill
