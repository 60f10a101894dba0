#include "serve/http_error.h"

#include <gtest/gtest.h>

namespace tidemill {
namespace {

HttpError of(ErrorCode code, const std::string& message, bool has_begun = false) {
  return http_error({code, message}, has_begun);
}

TEST(HttpError, WhatTheClientSent) {
  const HttpError error = of(ErrorCode::kRequest, "messages[2].content: missing");
  EXPECT_EQ(error.status, 400);
  EXPECT_FALSE(error.retry_after_s);
  EXPECT_EQ(to_string(nlohmann::json(openai_error(error))),
            R"({"error":{"code":"invalid_request_error","message":"messages[2].content: missing",)"
            R"("param":"messages[2].content","type":"invalid_request_error"}})");
  EXPECT_EQ(anthropic_error(error).dump(),
            R"({"type":"error","error":{"type":"invalid_request_error",)"
            R"("message":"messages[2].content: missing"}})");
  // A text that begins with no field.
  for (const char* text : {"body: no object", "tool \"x\": bad", "n is 0", "a, b: c", ""}) {
    EXPECT_EQ(of(ErrorCode::kRequest, text).param, "") << text;
    EXPECT_TRUE(openai_error(of(ErrorCode::kRequest, text))["error"]["param"].is_null());
  }
  EXPECT_EQ(of(ErrorCode::kContextLength, "long").code, "context_length_exceeded");
  EXPECT_EQ(of(ErrorCode::kInvalidArgument, "temperature is 3").status, 400);
}

TEST(HttpError, NoRoomSaysWhenToComeBack) {
  const HttpError error = of(ErrorCode::kNoCapacity, "9 requests wait already; try again in 12 s");
  EXPECT_EQ(error.status, 503);
  EXPECT_EQ(error.retry_after_s, 12);
  EXPECT_EQ(anthropic_error(error)["error"]["type"], "overloaded_error");
  EXPECT_EQ(of(ErrorCode::kNoCapacity, "full").retry_after_s, 1);
  EXPECT_EQ(of(ErrorCode::kNoCapacity, "try again in x s").retry_after_s, 1);
  EXPECT_EQ(of(ErrorCode::kNoCapacity, "try again in 99999999999999999999 s").retry_after_s, 1);
}

TEST(HttpError, Deadlines) {
  EXPECT_EQ(of(ErrorCode::kDeadline, "late").status, 503);
  EXPECT_FALSE(of(ErrorCode::kDeadline, "late").retry_after_s);
  EXPECT_EQ(of(ErrorCode::kDeadline, "late; try again in 3 s").retry_after_s, 3);
  EXPECT_EQ(of(ErrorCode::kDeadline, "late", true).status, 504);
  EXPECT_EQ(of(ErrorCode::kCancelled, "gone").status, 499);
}

TEST(HttpError, FaultsOfTheServerNameNoFiles) {
  for (const ErrorCode code : {ErrorCode::kFileRead, ErrorCode::kInternal, ErrorCode::kTokenizer}) {
    const HttpError error = of(code, "/secret/place: gone");
    EXPECT_EQ(error.status, 500);
    EXPECT_EQ(error.message.find("secret"), std::string::npos);
    EXPECT_EQ(anthropic_error(error)["error"]["type"], "api_error");
  }
}

}  // namespace
}  // namespace tidemill
