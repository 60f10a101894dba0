#include "serve/service/origin.h"

#include <gtest/gtest.h>

namespace tidemill {
namespace {

HttpHead head(const char* peer, std::vector<HttpHeader> headers) {
  HttpHead head;
  head.peer = peer;
  head.headers = std::move(headers);
  return head;
}

TEST(Origin, LocalIsWhoComesFromThisMachineByItsOwnName) {
  for (const char* host : {"localhost:8000", "LOCALHOST", "127.0.0.1:8000", "[::1]:8000"}) {
    EXPECT_TRUE(is_local(head("127.0.0.1:5", {{"Host", host}}))) << host;
    EXPECT_TRUE(is_local(head("[::1]:5", {{"Host", host}}))) << host;
    EXPECT_FALSE(is_local(head("10.0.0.2:5", {{"Host", host}}))) << host;
    EXPECT_FALSE(is_local(head("127.0.0.1:5", {{"Host", host}, {"X-Forwarded-For", "10.0.0.2"}})));
    EXPECT_FALSE(is_local(head("127.0.0.1:5", {{"Host", host}, {"Forwarded", "for=10.0.0.2"}})));
  }
  for (const char* host : {"evil.example", "127.evil.example", "localhost.evil.example", ""}) {
    EXPECT_FALSE(is_local(head("127.0.0.1:5", {{"Host", host}}))) << host;
  }
}

TEST(Origin, HostsAndPagesAreThoseOfTheOperator) {
  ServiceOptions options;
  options.hosts = {"localhost"};
  options.origins = {"https://app.example"};
  const auto status = [&](std::vector<HttpHeader> headers) {
    const auto error = check_origin(options, head("127.0.0.1:5", std::move(headers)));
    return error ? error->code : "";
  };
  EXPECT_EQ(status({{"Host", "localhost:8000"}}), "");
  EXPECT_EQ(status({{"Host", "LocalHost"}}), "");
  EXPECT_EQ(status({{"Host", "other"}}), "host_not_allowed");
  EXPECT_EQ(status({}), "host_not_allowed");
  EXPECT_EQ(status({{"Host", "localhost:8000"}, {"Origin", "http://localhost:8000"}}), "");
  EXPECT_EQ(status({{"Host", "localhost:8000"}, {"Origin", "http://localhost:9000"}}),
            "origin_not_allowed");
  EXPECT_EQ(status({{"Host", "localhost"}, {"Origin", "https://app.example"}}), "");
  EXPECT_EQ(status({{"Host", "localhost"}, {"Origin", "null"}}), "origin_not_allowed");
}

TEST(Origin, BrowsersGetWhatTheyAskFor) {
  std::vector<HttpHeader> none;
  add_origin_headers(head("127.0.0.1:5", {}), none);
  EXPECT_TRUE(none.empty());
  const HttpResponse answer =
      preflight(head("127.0.0.1:5", {{"Origin", "https://app.example"},
                                     {"Access-Control-Request-Headers", "x-stainless-os"}}));
  const HttpHead seen = head("", answer.headers);
  EXPECT_EQ(seen.header("Access-Control-Allow-Origin"), "https://app.example");
  EXPECT_EQ(seen.header("Access-Control-Allow-Headers"), "x-stainless-os");
}

}  // namespace
}  // namespace tidemill
