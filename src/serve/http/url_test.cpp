#include "serve/http/url.h"

#include <gtest/gtest.h>

namespace tidemill {
namespace {

TEST(ParseUrl, TakesWhatPeopleHave) {
  const struct {
    const char* text;
    const char* host;
    const char* port;
    const char* base;
    const char* authority;
  } cases[] = {
      {"http://127.0.0.1:8000", "127.0.0.1", "8000", "", "127.0.0.1:8000"},
      {"http://localhost", "localhost", "80", "", "localhost:80"},
      {"http://h:1/", "h", "1", "", "h:1"},
      {"http://h:1/v1", "h", "1", "", "h:1"},
      {"http://h:1/v1/", "h", "1", "", "h:1"},
      {"http://h:65535/a/b/v1", "h", "65535", "/a/b", "h:65535"},
      {"http://h/a/", "h", "80", "/a", "h:80"},
      {"http://[::1]:8000/v1", "::1", "8000", "", "[::1]:8000"},
      {"http://[fe80::1]", "fe80::1", "80", "", "[fe80::1]:80"},
  };
  for (const auto& expected : cases) {
    const auto url = parse_url("--url", expected.text);
    ASSERT_TRUE(url) << url.error().message;
    EXPECT_EQ(url->host, expected.host) << expected.text;
    EXPECT_EQ(url->port, expected.port) << expected.text;
    EXPECT_EQ(url->base, expected.base) << expected.text;
    EXPECT_EQ(url->authority(), expected.authority) << expected.text;
  }
}

TEST(ParseUrl, RefusesTheRest) {
  for (const char* text : {"",
                           "h:8000",
                           "https://h",
                           "ftp://h",
                           "http://",
                           "http://:80",
                           "http:///x",
                           "http://h:",
                           "http://h:0",
                           "http://h:65536",
                           "http://h:8x",
                           "http://h:-1",
                           "http://u@h",
                           "http://h/?q=1",
                           "http://h/#x",
                           "http://h /",
                           "http://h\r\nX: y",
                           "http://[::1",
                           "http://[]:80",
                           "http://[::1]8000",
                           "http://h\xc3\xa9"}) {
    const auto url = parse_url("--url", text);
    ASSERT_FALSE(url) << text;
    EXPECT_EQ(url.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(url.error().message.find("--url"), std::string::npos);
  }
}

}  // namespace
}  // namespace tidemill
