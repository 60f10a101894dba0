#include "serve/service/prepare.h"

#include <gtest/gtest.h>

#include "text/tokenizer_for_tests.h"

namespace tidemill {
namespace {

constexpr int64_t kContext = 1000;

ServedModel model(std::vector<std::string> names = {"mini", "alias"}) {
  return {.tokenizer = mini_tokenizer(),
          .context = kContext,
          .longest_token = longest_token(*mini_tokenizer()),
          .policy = {},
          .names = std::move(names)};
}

tl::expected<PreparedAnswer, HttpError> prepare(const Json& body,
                                                Protocol protocol = Protocol::kChat,
                                                const ServedModel& served = model()) {
  return prepare_answer(protocol, body.dump(), served, "nonce", 77);
}

Json chat(Json more = Json::object()) {
  Json body = {{"messages", {{{"role", "user"}, {"content", "hello"}}}}};
  body.update(more);
  return body;
}

TEST(Prepare, TheSeedIsTheServersUnlessThereIsOne) {
  EXPECT_EQ(prepare(chat())->requests[0].sampling.seed, 77u);
  EXPECT_EQ(prepare(chat({{"seed", 0}}))->requests[0].sampling.seed, 0u);
}

TEST(Prepare, ModelNames) {
  EXPECT_EQ(prepare(chat())->model, "mini");
  EXPECT_EQ(prepare(chat({{"model", "alias"}}))->model, "alias");
  const auto unknown = prepare(chat({{"model", "other"}}));
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().status, 404);
  EXPECT_EQ(unknown.error().message, "model: \"other\" is not served here; there is: mini, alias");
  EXPECT_EQ(prepare(chat({{"model", "x"}}), Protocol::kChat, model({"mini", "*"}))->model, "x");
}

// User case 62.
TEST(Prepare, MaxTokensAndTheContext) {
  const int64_t prompt = prepare(chat())->prompt_tokens;
  const int64_t left = kContext - prompt;
  EXPECT_EQ(prepare(chat())->max_tokens, left);  // the default is beyond the context
  EXPECT_EQ(prepare(chat({{"max_tokens", nullptr}}))->max_tokens, left);
  EXPECT_EQ(prepare(chat({{"max_tokens", left}}))->max_tokens, left);
  EXPECT_EQ(prepare(chat({{"max_tokens", 1}}))->max_tokens, 1);
  const auto over = prepare(chat({{"max_tokens", left + 1}}));
  ASSERT_FALSE(over);
  EXPECT_EQ(over.error().code, "context_length_exceeded");
  for (const Json& wrong : {Json(0), Json(-1), Json("10"), Json(1.5), Json(1e30)}) {
    const auto refused = prepare(chat({{"max_tokens", wrong}}));
    ASSERT_FALSE(refused) << wrong;
    EXPECT_EQ(refused.error().status, 400);
    EXPECT_EQ(refused.error().param, "max_tokens");
  }
  const auto huge = prepare(chat({{"max_tokens", INT64_MAX}}));
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error().status, 400);
  // Messages cuts.
  EXPECT_EQ(prepare(chat({{"max_tokens", 100000}}), Protocol::kMessages)->max_tokens, left);
}

TEST(Prepare, WhatCannotFitIsNotTokenised) {
  const size_t longest = longest_token(*mini_tokenizer());
  const std::string text(longest * (kContext + 1), ' ');
  const auto refused =
      prepare({{"messages", {{{"role", "user"}, {"content", text}}}}}, Protocol::kChat);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, "context_length_exceeded");
  EXPECT_NE(refused.error().message.find("at least 100"), std::string::npos)
      << refused.error().message;
}

TEST(Prepare, NamesOfModelsAreShort) {
  const auto refused =
      prepare(chat({{"model", std::string(257, 'x')}}), Protocol::kChat, model({"mini", "*"}));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "model: 257 bytes; at most 256 are allowed");
}

TEST(Prepare, ChoicesCount) {
  const auto many =
      prepare({{"prompt", {"a", "b"}}, {"n", 3}, {"max_tokens", 5}}, Protocol::kCompletions);
  ASSERT_TRUE(many);
  EXPECT_EQ(many->requests.size(), 2u);
  EXPECT_EQ(many->max_tokens, 30);
  EXPECT_EQ(many->answer->choices(), 6);
}

TEST(Prepare, IdsAreTheProtocols) {
  EXPECT_EQ(prepare(chat())->id, "chatcmpl-nonce");
  EXPECT_EQ(prepare(chat({{"max_tokens", 5}}), Protocol::kMessages)->id, "msg_nonce");
  EXPECT_EQ(prepare({{"input", "x"}}, Protocol::kResponses)->id, "resp_nonce");
}

TEST(Prepare, BodiesThatAreNone) {
  const ServedModel served = model();
  for (const char* body : {"", "{", "[]", "null", "{\"messages\": [", "\xff", "{\"a\": 1} x"}) {
    for (const Protocol protocol :
         {Protocol::kChat, Protocol::kCompletions, Protocol::kMessages, Protocol::kResponses}) {
      const auto refused = prepare_answer(protocol, body, served, "nonce", 0);
      ASSERT_FALSE(refused) << body;
      EXPECT_EQ(refused.error().status, 400) << body;
    }
  }
}

TEST(Prepare, Tokens) {
  const ServedModel served = model();
  const auto whole = tokenize(R"({"prompt": "a<think>b"})", served);
  ASSERT_TRUE(whole);
  const auto bare = tokenize(R"({"prompt": "a<think>b", "add_special_tokens": false})", served);
  ASSERT_TRUE(bare);
  EXPECT_EQ((*whole)["count"].get<int64_t>(), (*bare)["count"].get<int64_t>() + 1);
  const int32_t think = *mini_tokenizer()->added_token("<think>");
  for (const Json& id : (*bare)["tokens"]) EXPECT_NE(id, think);  // text of the caller is text
  EXPECT_EQ((*tokenize(chat().dump(), served))["count"], prepare(chat())->prompt_tokens);
  const Json back = {{"tokens", (*bare)["tokens"]}};
  EXPECT_EQ((*detokenize(back.dump(), served))["prompt"], "a<think>b");
  for (const char* wrong : {R"({"tokens": [-1]})", R"({"tokens": [99999999]})",
                            R"({"tokens": ["a"]})", R"({"tokens": 3})", R"({})"}) {
    EXPECT_FALSE(detokenize(wrong, served)) << wrong;
  }
}

}  // namespace
}  // namespace tidemill
