#include "serve/http/request_reader.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace tidemill {
namespace {

using Stage = RequestReader::Stage;

constexpr int64_t kHeader = 1024;
constexpr int64_t kBody = 4096;

// Reads until done, refused or out of bytes, `step` bytes more at a time; the rest stays in bytes.
Stage read_all(RequestReader& reader, std::string& bytes, size_t step) {
  size_t offered = 0;
  for (;;) {
    const size_t taken = reader.read(std::string_view(bytes).substr(0, offered));
    bytes.erase(0, taken);
    offered -= taken;
    if (reader.stage() == Stage::kDone || reader.stage() == Stage::kRefused) break;
    if (taken > 0 && offered > 0) continue;
    if (offered == bytes.size()) break;
    offered = std::min(bytes.size(), offered + step);
  }
  return reader.stage();
}

std::string get(const std::string& headers) {
  return "GET / HTTP/1.1\r\nHost: a\r\n" + headers + "\r\n";
}

TEST(RequestReader, TakesOneRequestHoweverItIsCut) {
  const std::string head =
      "POST /v1/x?a=b&c=%20?d HTTP/1.1\r\nHost: h:80\r\nX-Empty:\r\n"
      "Authorization:   Bearer a b \t\r\nContent-Length: 5\r\n\r\n";
  for (size_t step = 1; step < 200; ++step) {
    std::string bytes = head + "hello" + "GET /next";
    RequestReader reader(kHeader, kBody);
    ASSERT_EQ(read_all(reader, bytes, step), Stage::kDone) << reader.message();
    // With a big step the next one is there as well.
    EXPECT_TRUE(std::string("GET /next").ends_with(bytes)) << bytes;
    EXPECT_EQ(bytes, "GET /next");
    const HttpRequest& request = reader.request();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/v1/x");
    EXPECT_EQ(request.query, "a=b&c=%20?d");
    EXPECT_EQ(request.body, "hello");
    EXPECT_EQ(request.header("authorization"), "Bearer a b");
    EXPECT_EQ(request.header("x-empty"), "");
    EXPECT_EQ(request.headers.size(), 4u);
    EXPECT_TRUE(reader.keep_alive());
    EXPECT_EQ(reader.content_length(), 5);
  }
}

TEST(RequestReader, TakesChunksHoweverTheyAreCut) {
  const std::string whole =
      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n"
      "5\r\nhello\r\n1;a=b;c=\"d\"\r\n \r\n00A\r\n0123456789\r\n0\r\nX-Trailer: 1\r\n\r\n";
  for (size_t step = 1; step < whole.size() + 2; ++step) {
    std::string bytes = whole + "G";
    RequestReader reader(kHeader, kBody);
    ASSERT_EQ(read_all(reader, bytes, step), Stage::kDone) << reader.message() << step;
    EXPECT_EQ(bytes, "G");
    EXPECT_EQ(reader.request().body, "hello 0123456789");
    EXPECT_EQ(reader.request().headers.size(), 2u);
    EXPECT_EQ(reader.content_length(), -1);
  }
}

TEST(RequestReader, StopsBehindTheHead) {
  RequestReader reader(kHeader, kBody);
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n";
  EXPECT_EQ(reader.read(head + "ab"), head.size());
  EXPECT_EQ(reader.stage(), Stage::kBody);
  EXPECT_EQ(reader.read("ab"), 2u);
  EXPECT_EQ(reader.stage(), Stage::kDone);
}

TEST(RequestReader, HeadIsAGetWithoutItsBody) {
  std::string bytes = "HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n";
  RequestReader reader(kHeader, kBody);
  ASSERT_EQ(read_all(reader, bytes, 1000), Stage::kDone);
  EXPECT_TRUE(reader.is_head());
  EXPECT_EQ(reader.request().method, "GET");
}

TEST(RequestReader, KeepAlive) {
  const std::vector<std::pair<std::string, bool>> cases = {
      {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", true},
      {"GET / HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\n", false},
      {"GET / HTTP/1.1\r\nHost: a\r\nConnection: x, close\r\n\r\n", false},
      {"GET / HTTP/1.0\r\n\r\n", false},
      {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", true}};
  for (auto [bytes, keeps] : cases) {
    RequestReader reader(kHeader, kBody);
    ASSERT_EQ(read_all(reader, bytes, 1000), Stage::kDone) << bytes;
    EXPECT_EQ(reader.keep_alive(), keeps) << bytes;
  }
}

TEST(RequestReader, OtherFormsOfTheTarget) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"http://a/x", "/x"}, {"HTTPS://a:1/x/y", "/x/y"}, {"//x", "//x"}};
  for (const auto& [target, path] : cases) {
    std::string bytes = "GET " + target + " HTTP/1.1\r\nHost: a\r\n\r\n";
    RequestReader reader(kHeader, kBody);
    ASSERT_EQ(read_all(reader, bytes, 1000), Stage::kDone) << reader.message();
    EXPECT_EQ(reader.request().path, path);
  }
}

TEST(RequestReader, RefusesWhatCouldBeReadInTwoWays) {
  const std::string post = "POST / HTTP/1.1\r\nHost: a\r\n";
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n\r\n";
  const std::vector<std::pair<std::string, int>> cases = {
      // lengths
      {post + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400},
      {post + "Content-Length: 1\r\nContent-Length: 1\r\n\r\na", 400},
      {post + "Content-Length: 1, 1\r\n\r\na", 400},
      {post + "Content-Length: +1\r\n\r\na", 400},
      {post + "Content-Length: -1\r\n\r\na", 400},
      {post + "Content-Length: 0x1\r\n\r\na", 400},
      {post + "Content-Length: 1 1\r\n\r\na", 400},
      {post + "Content-Length:\r\n\r\na", 400},
      {post + "Content-Length: 99999999999999999999999\r\n\r\na", 400},
      {post + "Content-Length: 4097\r\n\r\na", 413},
      {post + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 400},
      {post + "Transfer-Encoding: identity\r\n\r\n", 400},
      {post + "Transfer-Encoding: xchunked\r\n\r\n", 400},
      {post + "Transfer-Encoding : chunked\r\n\r\n", 400},
      {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      // chunks
      {chunked + "x\r\n0\r\n\r\n", 400},
      {chunked + "\r\n0\r\n\r\n", 400},
      {chunked + "-1\r\n0\r\n\r\n", 400},
      {chunked + "1\nab\r\n0\r\n\r\n", 400},
      {chunked + "1\r\nab\r\n0\r\n\r\n", 400},
      {chunked + "1;a=\"\n\"\r\na\r\n0\r\n\r\n", 400},
      {chunked + "1;a\nb\r\na\r\n0\r\n\r\n", 400},
      {chunked + "1\r\na\r\n0\r\nX: a\nb\r\n\r\n", 400},
      {chunked + "1\r\na\n0\r\n\r\n", 400},
      {chunked + "1 \x01\r\na\r\n", 400},
      {chunked + "fffffffffffffffff\r\n", 400},
      {chunked + "ffffffffffffffff\r\n", 413},
      {chunked + "1001\r\n", 413},
      {chunked + "800\r\n" + std::string(2048, 'a') + "\r\n801\r\n", 413},
      {chunked + "1;" + std::string(5000, 'a'), 400},
      {chunked + "0\r\n" + std::string(5000, 'a'), 400},
      {chunked + "0\r\nbad trailer\r\n\r\n", 400},
      // heads
      {get("no colon\r\n"), 400},
      {get(": no name\r\n"), 400},
      {get("a b: c\r\n"), 400},
      {get("a : c\r\n"), 400},
      {get("a: b\r\n folded\r\n"), 400},
      {get("a: b\r\n\tfolded\r\n"), 400},
      {get("a: b\n"), 400},
      {get("a: b\rc: d\r\n"), 400},
      {get(std::string("a: b\0c\r\n", 8)), 400},
      {get("a: b\x01\r\n"), 400},
      {get("a: b\x7f\r\n"), 400},
      {get("Host: b\r\n"), 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400},
      {"GET / HTTP/1.1\nHost: a\n\n", 400},
      {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 400},
      {"GET / HTTP/1.2\r\nHost: a\r\n\r\n", 400},
      {"GET / HTTP/0.9\r\nHost: a\r\n\r\n", 400},
      {"GET / http/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET /\r\n\r\n", 400},
      {"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET /  HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET http://a HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"G(T / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {" GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11), 400},
      {get("Expect: 200-ok\r\n"), 417},
      // sizes
      {"GET /" + std::string(2000, 'a'), 431},
      {get("a: " + std::string(2000, 'b') + "\r\n"), 431},
  };
  for (const auto& [text, status] : cases) {
    for (const size_t step : {size_t{1}, size_t{7}, size_t{100000}}) {
      std::string bytes = text;
      RequestReader reader(kHeader, kBody);
      EXPECT_EQ(read_all(reader, bytes, step), Stage::kRefused) << text.substr(0, 200);
      EXPECT_EQ(reader.status(), status) << text.substr(0, 200) << "\n" << reader.message();
      EXPECT_FALSE(reader.message().empty());
      EXPECT_EQ(reader.read("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), 0u);
    }
  }
}

TEST(RequestReader, SizesUpToTheLimitsAreTaken) {
  std::string head = "GET / HTTP/1.1\r\nHost: a\r\nX: ";
  head += std::string(kHeader - head.size() - 4, 'x') + "\r\n\r\n";
  RequestReader reader(kHeader, kBody);
  EXPECT_EQ(reader.read(head), head.size()) << reader.message();
  EXPECT_EQ(reader.stage(), Stage::kDone);
  head.insert(head.size() - 4, "x");
  RequestReader full(kHeader, kBody);
  full.read(head);
  EXPECT_EQ(full.status(), 431);

  std::string bytes = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4096\r\n\r\n";
  bytes += std::string(kBody, 'b');
  RequestReader body(kHeader, kBody);
  EXPECT_EQ(read_all(body, bytes, 10000), Stage::kDone);
  EXPECT_EQ(body.request().body.size(), static_cast<size_t>(kBody));

  std::string headers;
  for (int i = 0; i < 255; ++i) headers += "a:\r\n";
  std::string many = get(headers);
  RequestReader some(8192, kBody);
  EXPECT_EQ(read_all(some, many, 10000), Stage::kDone) << some.message();
  many = get(headers + "a:\r\n");
  RequestReader too_many(8192, kBody);
  EXPECT_EQ(read_all(too_many, many, 10000), Stage::kRefused);
  EXPECT_EQ(too_many.status(), 431);
}

TEST(RequestReader, AnEmptyLineInFrontIsSkippedOnce) {
  for (const size_t step : {1, 2, 1000}) {
    std::string bytes = "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n";
    RequestReader reader(kHeader, kBody);
    EXPECT_EQ(read_all(reader, bytes, step), Stage::kDone) << reader.message();
  }
}

TEST(RequestReader, ExpectIsForHttp11) {
  std::string bytes =
      "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 1\r\n\r\na";
  RequestReader reader(kHeader, kBody);
  EXPECT_EQ(read_all(reader, bytes, 1000), Stage::kDone);
  EXPECT_TRUE(reader.expects_continue());
  bytes = "POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\na";
  RequestReader old(kHeader, kBody);
  EXPECT_EQ(read_all(old, bytes, 1000), Stage::kDone);
  EXPECT_FALSE(old.expects_continue());
}

// The same bytes are the same request, however they are cut.
TEST(RequestReader, MutatedRequestsAreReadAlikeInOneOrManyPieces) {
  const std::vector<std::string> seeds = {
      "POST /a?b HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
      get("Connection: close\r\nAccept: */*\r\n")};
  const std::string alphabet = std::string("\r\n\0 :;,0159afGx\t/\x80\xff", 19);
  std::mt19937 random(1);
  const auto below = [&](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
  };
  for (int round = 0; round < 20000; ++round) {
    std::string text = seeds[below(seeds.size())];
    for (size_t edits = 1 + below(3); edits > 0 && !text.empty(); --edits) {
      const size_t at = below(text.size());
      switch (below(3)) {
        case 0:
          text[at] = alphabet[below(alphabet.size())];
          break;
        case 1:
          text.insert(at, 1, alphabet[below(alphabet.size())]);
          break;
        default:
          text.erase(at, 1 + below(4));
      }
    }
    std::string at_once = text;
    std::string cut = text;
    RequestReader a(kHeader, kBody);
    RequestReader b(kHeader, kBody);
    ASSERT_EQ(read_all(a, at_once, text.size()), read_all(b, cut, 1)) << text;
    if (a.stage() == Stage::kDone) {
      EXPECT_EQ(at_once, cut) << text;
      EXPECT_EQ(a.request().body, b.request().body) << text;
      EXPECT_EQ(a.request().path, b.request().path) << text;
    }
  }
}

}  // namespace
}  // namespace tidemill
