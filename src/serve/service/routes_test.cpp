#include "serve/service/routes.h"

#include <gtest/gtest.h>

namespace tidemill {
namespace {

TEST(Routes, ProtocolsAreKnownWithAndWithoutVersion) {
  for (const char* path : {"/v1/messages", "/messages", "/anthropic/v1/messages",
                           "/anthropic/messages", "/beta/messages"}) {
    const FoundRoute found = find_route("POST", path);
    ASSERT_NE(found.route, nullptr) << path;
    EXPECT_EQ(found.route->path, "/v1/messages");
  }
}

TEST(Routes, OtherPathsAreKnownAsTheyAre) {
  EXPECT_NE(find_route("GET", "/metrics").route, nullptr);
  for (const char* path : {"/v1/metrics", "/v1/health/live", "/metrics/", "/v1", "/v1/", "//",
                           "/v1/v1/models", "/v1/models/", "/v1/chat/completions/", "/betafish"}) {
    const FoundRoute found = find_route("GET", path);
    EXPECT_EQ(found.route, nullptr) << path;
    EXPECT_TRUE(found.allowed.empty()) << path;
  }
}

TEST(Routes, AnotherMethodIsNamed) {
  const FoundRoute found = find_route("GET", "/v1/completions");
  EXPECT_EQ(found.route, nullptr);
  EXPECT_EQ(found.allowed, "POST");
}

TEST(Routes, ErrorsFollowTheClient) {
  EXPECT_EQ(find_route("GET", "/anthropic/nothing").protocol, Protocol::kMessages);
  EXPECT_EQ(find_route("GET", "/v1/messages").protocol, Protocol::kMessages);
  EXPECT_EQ(find_route("GET", "/v1/nothing").protocol, Protocol::kChat);
}

TEST(Routes, ModelsMayHaveSlashes) {
  ASSERT_NE(find_route("GET", "/v1/models/deepseek-ai/DeepSeek-V4.1").route, nullptr);
  EXPECT_EQ(model_in_path("/v1/models/deepseek-ai/DeepSeek-V4.1"), "deepseek-ai/DeepSeek-V4.1");
}

}  // namespace
}  // namespace tidemill
