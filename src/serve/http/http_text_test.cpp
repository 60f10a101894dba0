#include "serve/http/http_text.h"

#include <gtest/gtest.h>

namespace tidemill {
namespace {

TEST(HttpText, HeadOfAWholeAnswer) {
  std::string out;
  append_response_head(out, {.status = 404, .headers = {{"X-A", "b"}}, .body = "{}"},
                       HttpFraming::kLength, HttpAfter::kKeep, http_date_line(784887151));
  EXPECT_EQ(out,
            "HTTP/1.1 404 Not Found\r\nDate: Tue, 15 Nov 1994 08:12:31 GMT\r\n"
            "Content-Type: application/json\r\nX-A: b\r\nContent-Length: 2\r\n\r\n");
}

TEST(HttpText, HeadOfAStream) {
  std::string out;
  append_response_head(out, {.content_type = "text/event-stream"}, HttpFraming::kChunked,
                       HttpAfter::kClose, "");
  EXPECT_EQ(out,
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
            "Connection: close\r\n\r\n");
  out.clear();
  append_response_head(out, {.content_type = ""}, HttpFraming::kUntilClose, HttpAfter::kKeepAlive,
                       "");
  EXPECT_EQ(out, "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n\r\n");
}

TEST(HttpText, NoBodyNoLength) {
  std::string out;
  append_response_head(out, {.status = 204}, HttpFraming::kLength, HttpAfter::kKeep, "");
  EXPECT_EQ(out, "HTTP/1.1 204 No Content\r\n\r\n");
}

TEST(HttpText, AValueCannotEndItsHeader) {
  std::string out;
  append_response_head(out,
                       {.content_type = "a\r\n\r\nb",
                        .headers = {{"X\r\nY: z", std::string("1\nSet-Cookie: a\r\n\0b", 19)}},
                        .body = ""},
                       HttpFraming::kLength, HttpAfter::kKeep, "");
  EXPECT_EQ(out,
            "HTTP/1.1 200 OK\r\nContent-Type: ab\r\nXY: z: 1Set-Cookie: ab\r\n"
            "Content-Length: 0\r\n\r\n");
}

TEST(HttpText, Chunks) {
  std::string out;
  append_chunk(out, "");
  EXPECT_EQ(out, "");
  append_chunk(out, "0123456789abcdefg");
  EXPECT_EQ(out, "11\r\n0123456789abcdefg\r\n");
}

TEST(HttpText, HeadersAreFoundInAnyCase) {
  const HttpHead head{.headers = {{"Content-Type", "a"}, {"X", "1"}, {"x", "2"}}};
  EXPECT_EQ(head.header("content-type"), "a");
  EXPECT_EQ(head.header("X"), "1");
  EXPECT_EQ(head.header("y"), "");
}

}  // namespace
}  // namespace tidemill
