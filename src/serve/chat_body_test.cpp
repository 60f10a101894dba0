#include "serve/chat_body.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/cases_for_tests.h"
#include "serve/describe_for_tests.h"

namespace tidemill {
namespace {

using testing::HasSubstr;

const Json kUsual = {{"messages", Json::array({{{"role", "user"}, {"content", "U"}}})}};

Result<ConversationRequest> read(const std::string& fields, const RequestPolicy& policy = {}) {
  Json body = Json::parse("{" + fields + "}");
  if (!body.contains("messages")) body["messages"] = kUsual["messages"];
  return read_chat_body(body, policy);
}

TEST(ChatBody, Cases) {
  check_cases("chat.json", kUsual, [](const Json& body) -> Result<Json> {
    TRY(const ConversationRequest request, read_chat_body(body, {}));
    return describe(request);
  });
}

TEST(ChatBody, DefaultsOfTheCheckpoint) {
  RequestPolicy policy;
  policy.defaults.temperature = 0.6f;
  policy.defaults.top_p = 0.95f;
  const auto request = read(R"("top_p": 0.5)", policy);
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->generation.request.sampling.temperature, 0.6f);
  EXPECT_EQ(request->generation.request.sampling.top_p, 0.5f);
}

TEST(ChatBody, HostedSampling) {
  const RequestPolicy hosted{.hosted_sampling = true};
  const std::string fields = R"("temperature": 0.2, "top_p": 0.5, "presence_penalty": 1)";
  const auto thinking = read(fields, hosted);
  ASSERT_TRUE(thinking);
  EXPECT_EQ(thinking->generation.request.sampling.temperature, 1.0f);
  EXPECT_EQ(thinking->generation.request.sampling.top_p, 0.95f);
  EXPECT_EQ(thinking->generation.request.sampling.presence_penalty, 0.0f);
  const auto plain = read(fields + R"(, "thinking": {"type": "disabled"})", hosted);
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->generation.request.sampling.temperature, 0.2f);
  EXPECT_EQ(plain->generation.request.sampling.top_p, 1.0f);
}

TEST(ChatBody, UnknownFieldsByPolicy) {
  const auto refused = read(R"("temprature": 1)", {.refuse_unknown = true});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "temprature: unknown field");
}

TEST(ChatBody, RefusesEverythingButObjects) {
  for (const char* text : {"[]", "1", "\"x\"", "null"}) {
    const auto request = read_chat_body(Json::parse(text), {});
    ASSERT_FALSE(request) << text;
    EXPECT_THAT(request.error().message, HasSubstr("body: expected an object"));
  }
}

// Any JSON type in any field: an error that names it, or accepted; never a crash.
TEST(ChatBody, WrongTypesNameTheField) {
  const char* fields[] = {"temperature",
                          "top_p",
                          "top_k",
                          "min_p",
                          "n",
                          "stop",
                          "stop_token_ids",
                          "stream",
                          "stream_options",
                          "seed",
                          "logprobs",
                          "top_logprobs",
                          "max_tokens",
                          "max_completion_tokens",
                          "logit_bias",
                          "priority",
                          "cache_salt",
                          "ignore_eos",
                          "guided_json",
                          "guided_regex",
                          "guided_grammar",
                          "guided_choice",
                          "structured_outputs",
                          "tools",
                          "tool_choice",
                          "parallel_tool_calls",
                          "thinking",
                          "reasoning_effort",
                          "response_format",
                          "chat_template_kwargs",
                          "model",
                          "messages"};
  // No field takes a number in a nested array.
  for (const char* field : fields) {
    const auto request = read(fmt::format(R"("{}": [[1]])", field));
    ASSERT_FALSE(request) << field;
    EXPECT_EQ(request.error().code, ErrorCode::kRequest);
    EXPECT_THAT(request.error().message, testing::StartsWith(field));
  }
}

TEST(ChatBody, DefaultLengthFollowsTheThinking) {
  const auto length = [](const std::string& fields) {
    auto request = read(fields);
    EXPECT_TRUE(request && limit_tokens(request->generation, 100, 1 << 20));
    return request->generation.request.max_tokens;
  };
  EXPECT_EQ(length(R"("max_tokens": null)"), 65536);
  EXPECT_EQ(length(R"("reasoning_effort": "max")"), 131072);
  EXPECT_EQ(length(R"("reasoning_effort": "none")"), 8192);
  EXPECT_EQ(length(R"("max_tokens": 7)"), 7);
}

TEST(LimitTokens, TheEdgesOfTheContext) {
  Generation generation{.default_max_tokens = 50};
  ASSERT_TRUE(limit_tokens(generation, 99, 100));
  EXPECT_EQ(generation.request.max_tokens, 1);
  ASSERT_TRUE(limit_tokens(generation, 10, 100));
  EXPECT_EQ(generation.request.max_tokens, 50);
  for (const int64_t prompt : {100, 101, 7684}) {
    const Status status = limit_tokens(generation, prompt, 100);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kContextLength);
    EXPECT_THAT(status.error().message, HasSubstr(std::to_string(prompt)));
  }
  generation.max_tokens = 90;
  EXPECT_TRUE(limit_tokens(generation, 10, 100));
  EXPECT_FALSE(limit_tokens(generation, 11, 100));
  generation.max_tokens = INT64_MAX;
  const Status status = limit_tokens(generation, 11, 100);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message,
            "the prompt has 11 tokens and 9223372036854775807 are asked for; the context is 100; "
            "shorten the prompt or ask for at most 89");
}

// The engine does not see the stop strings that only the parser looks for.
TEST(ReadStopStrings, Limits) {
  const auto read_stop = [](const Json& stop) {
    Request request;
    const Json body = {{"stop", stop}};
    return read_stop_strings(*Fields::of(body, ""), "stop", request);
  };
  EXPECT_TRUE(read_stop(std::string(4096, 'x')));
  EXPECT_TRUE(read_stop(std::vector<std::string>(64, "x")));
  const Status bytes = read_stop(std::vector<std::string>(2, std::string(2049, 'x')));
  ASSERT_FALSE(bytes);
  EXPECT_EQ(bytes.error().message, "stop: 4098 bytes in all; at most 4096 are allowed");
  const Status count = read_stop(std::vector<std::string>(65, "x"));
  ASSERT_FALSE(count);
  EXPECT_EQ(count.error().message, "stop: 65 strings; at most 64 are allowed");
}

TEST(ParseTimeout, Seconds) {
  EXPECT_EQ(parse_timeout("1.5").value(), 1500);
  for (const char* text : {"", "0", "-1", "1s", "nan", "inf", "1e99", " 1", "86401"}) {
    EXPECT_FALSE(parse_timeout(text)) << text;
  }
}

}  // namespace
}  // namespace tidemill
