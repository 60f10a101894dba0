#include "serve/responses_body.h"

#include <gtest/gtest.h>

#include "serve/cases_for_tests.h"
#include "serve/describe_for_tests.h"

namespace tidemill {
namespace {

TEST(ResponsesBody, Cases) {
  check_cases("responses.json", {{"input", "U"}}, [](const Json& body) -> Result<Json> {
    TRY(const ResponsesRequest request, read_responses_body(body, {}));
    Json json = describe(static_cast<const ConversationRequest&>(request));
    json["prompt"] = describe(request.prompt);
    return json;
  });
}

TEST(ResponsesBody, EchoRepeatsWhatWasSent) {
  const auto request = read_responses_body(
      {{"input", "U"}, {"temperature", 0.6}, {"metadata", {{"a", "b"}}}, {"instructions", "I"}},
      {});
  ASSERT_TRUE(request);
  EXPECT_EQ(request->echo["temperature"].dump(), "0.6");
  EXPECT_EQ(request->echo["metadata"]["a"], "b");
  EXPECT_EQ(request->echo["instructions"], "I");
  EXPECT_EQ(request->echo["store"], false);
  EXPECT_EQ(request->echo["tools"], Json::array());
}

}  // namespace
}  // namespace tidemill
