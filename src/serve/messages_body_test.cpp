#include "serve/messages_body.h"

#include <gtest/gtest.h>

#include "serve/cases_for_tests.h"
#include "serve/describe_for_tests.h"

namespace tidemill {
namespace {

TEST(MessagesBody, Cases) {
  const Json usual = {{"messages", Json::array({{{"role", "user"}, {"content", "U"}}})}};
  check_cases("messages.json", usual, [](const Json& body) -> Result<Json> {
    TRY(const ConversationRequest request, read_messages_body(body, {}));
    Json json = describe(request);
    json["prompt"] = describe(request.prompt);
    return json;
  });
}

TEST(MessagesBody, MaxTokensAreCutToTheContext) {
  auto request = read_messages_body(
      {{"messages", Json::array({{{"role", "user"}, {"content", "U"}}})}, {"max_tokens", 1000}},
      {});
  ASSERT_TRUE(request && limit_tokens(request->generation, 90, 100));
  EXPECT_EQ(request->generation.request.max_tokens, 10);
  EXPECT_FALSE(limit_tokens(request->generation, 100, 100));
}

}  // namespace
}  // namespace tidemill
