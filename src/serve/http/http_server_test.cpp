// Requests, answers and streams of well-behaved clients, and handlers that are not.
#include "serve/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "serve/http/http_for_tests.h"

namespace tidemill {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class HttpServerTest : public testing::Test, public TestServer {};

TEST_F(HttpServerTest, AnswersAndKeepsTheConnection) {
  start();
  TestClient client(port());
  for (int i = 0; i < 3; ++i) {
    client.post("/echo?a=b", "body" + std::to_string(i));
    const TestResponse response = client.response();
    EXPECT_EQ(response.status, 200);
    EXPECT_EQ(response.body, "POST /echo?a=b body" + std::to_string(i));
    EXPECT_EQ(response.header("content-type"), "text/plain");
    EXPECT_THAT(response.header("date"), testing::EndsWith(" GMT"));
    EXPECT_EQ(response.header("connection"), "");
  }
  client.get("/nowhere");
  EXPECT_EQ(client.response().status, 404);
  EXPECT_EQ(server->stats().accepted, 1);
  EXPECT_EQ(server->stats().connections, 1);
  EXPECT_EQ(server->stats().refused, 0);
  client.close();
  EXPECT_TRUE(has_no_connections());
}

TEST_F(HttpServerTest, RequestSaysWhoAndWhen) {
  std::promise<HttpRequest> seen;
  routes["/see"] = [&](TestHandler&, HttpRequest request, std::shared_ptr<HttpReply> reply) {
    seen.set_value(std::move(request));
    reply->send({});
  };
  start();
  const Clock::time_point before = Clock::now();
  TestClient client(port());
  client.get("/see?x", "X-A: 1\r\n");
  EXPECT_EQ(client.response().status, 200);
  const HttpRequest request = seen.get_future().get();
  EXPECT_THAT(request.peer, StartsWith("127.0.0.1:"));
  EXPECT_EQ(request.query, "x");
  EXPECT_EQ(request.header("x-a"), "1");
  EXPECT_GE(request.arrived, before);
  EXPECT_LE(request.arrived, Clock::now());
}

TEST_F(HttpServerTest, HeadIsAGetWithoutBody) {
  start();
  TestClient client(port());
  client.send("HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n");
  const TestResponse head = client.response(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.header("content-length"), "11");
  client.get("/echo");
  EXPECT_EQ(client.response().body, "GET /echo? ");
  // A stream ends behind its head as well.
  client.send("HEAD /stream HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(client.response(true).header("transfer-encoding"), "chunked");
  on_thread([](TestHandler& handler) {
    handler.held.back()->write("more");
    handler.held.back()->end();
  });
  client.get("/echo");
  EXPECT_EQ(client.response().body, "GET /echo? ");
}

TEST_F(HttpServerTest, Http10ClosesUnlessAskedToKeep) {
  start();
  TestClient closing(port());
  closing.send("GET /echo HTTP/1.0\r\n\r\n");
  const std::string answer = closing.receive_all();
  EXPECT_THAT(answer, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(answer, testing::EndsWith("\r\n\r\nGET /echo? "));

  TestClient keeping(port());
  for (int i = 0; i < 2; ++i) {
    keeping.send("GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    const TestResponse response = keeping.response();
    EXPECT_EQ(response.header("connection"), "keep-alive");
    EXPECT_EQ(response.body, "GET /echo? ");
  }
  // A stream can only end with the connection.
  keeping.send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  ASSERT_TRUE(keeping.receive_until("first"));
  on_thread([](TestHandler& handler) {
    handler.held.back()->write(" second");
    handler.held.back()->end();
  });
  EXPECT_THAT(keeping.receive_all(), testing::EndsWith("\r\n\r\nfirst second"));
  EXPECT_THAT(keeping.received(), HasSubstr("Connection: close\r\n"));
}

TEST_F(HttpServerTest, ConnectionCloseIsObeyed) {
  start();
  TestClient client(port());
  client.get("/echo", "Connection: close\r\n");
  EXPECT_EQ(client.response().header("connection"), "close");
  EXPECT_FALSE(client.receive());
  EXPECT_FALSE(client.was_reset());
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  start();
  TestClient client(port());
  std::string requests;
  for (int i = 0; i < 50; ++i) {
    requests += i % 10 == 5 ? "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n"
                            : "GET /echo?" + std::to_string(i) + " HTTP/1.1\r\nHost: a\r\n\r\n";
  }
  client.send(requests);
  for (int i = 0; i < 50; ++i) {
    if (i % 10 == 5) {
      ASSERT_TRUE(eventually([&] { return kept == i / 10 + 1; })) << i;
      on_thread([](TestHandler& handler) { handler.held.back()->send({.body = "held"}); });
      EXPECT_EQ(client.response().body, "held");
    } else {
      EXPECT_EQ(client.response().body, "GET /echo?" + std::to_string(i) + " ");
    }
  }
  EXPECT_EQ(all_closes(), 0);
}

// More than the server keeps of them while an answer is being made.
TEST_F(HttpServerTest, ManyPipelinedRequestsWaitAndAreAnswered) {
  options.limits.header = 1024;
  start();
  TestClient client(port());
  client.get("/hold");
  ASSERT_TRUE(eventually([this] { return kept == 1; }));
  constexpr int kRequests = 2000;
  std::thread sender([&] {
    for (int i = 0; i < kRequests; ++i) client.get("/echo?" + std::to_string(i));
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // to fill what is kept
  on_thread([](TestHandler& handler) { handler.held.back()->send({.body = "held"}); });
  EXPECT_EQ(client.response().body, "held");
  for (int i = 0; i < kRequests; ++i) {
    ASSERT_EQ(client.response().body, "GET /echo?" + std::to_string(i) + " ");
  }
  sender.join();
}

TEST_F(HttpServerTest, AClientThatGoesBehindPipelinedRequestsIsSeen) {
  options.limits.header = 1024;
  start();
  TestClient client(port());
  client.get("/hold");
  ASSERT_TRUE(eventually([this] { return kept == 1; }));
  for (int i = 0; i < 1000; ++i) client.get("/echo?" + std::to_string(i));
  client.close();
  EXPECT_TRUE(eventually([this] { return closes(HttpClose::kClientGone) == 1; }));
  EXPECT_TRUE(has_no_connections());
}

TEST_F(HttpServerTest, StreamsInChunks) {
  start();
  TestClient client(port());
  for (int round = 0; round < 2; ++round) {
    client.get("/stream");
    ASSERT_TRUE(client.receive_until("5\r\nfirst\r\n"));
    on_thread([](TestHandler& handler) {
      handler.held.back()->write("second");
      handler.held.back()->write("");
      EXPECT_GT(handler.held.back()->buffered(), 0u);
      EXPECT_TRUE(handler.held.back()->is_open());
    });
    ASSERT_TRUE(client.receive_until("6\r\nsecond\r\n"));
    on_thread([](TestHandler& handler) {
      EXPECT_EQ(handler.held.back()->buffered(), 0u);
      handler.held.back()->end();
      EXPECT_FALSE(handler.held.back()->is_open());
      handler.held.back()->write("nothing");
      handler.held.back()->end();
    });
    EXPECT_EQ(client.response().body, "firstsecond");
    EXPECT_EQ(client.received(), "");
  }
  client.close();
  EXPECT_TRUE(has_no_connections());
  EXPECT_EQ(all_closes(), 0);
}

TEST_F(HttpServerTest, BodiesInChunksAndInPieces) {
  start();
  TestClient client(port());
  client.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nab");
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  client.send("c\r\n0");
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  client.send("\r\n\r\n");
  EXPECT_EQ(client.response().body, "POST /echo? abc");
  std::string large(5'000'000, 'x');
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>('a' + i % 23);
  client.post("/echo", large);
  EXPECT_EQ(client.response().body, "POST /echo? " + large);
  EXPECT_EQ(server->stats().body_bytes, 0);
}

// One answer may be larger than what a stream may leave waiting.
TEST_F(HttpServerTest, LargeAnswersAndBurstsAreNotSlowReaders) {
  options.limits.buffer = 1000;
  const std::string large(20'000'000, 'y');
  routes["/large"] = [&](TestHandler&, HttpRequest, std::shared_ptr<HttpReply> reply) {
    reply->send({.body = large});
  };
  routes["/burst"] = [&](TestHandler&, HttpRequest, std::shared_ptr<HttpReply> reply) {
    reply->begin({});
    for (int i = 0; i < 20; ++i) reply->write(large.substr(0, 1'000'000));
    reply->end();
  };
  start();
  TestClient client(port());
  client.get("/large");
  EXPECT_EQ(client.response().body, large);
  client.get("/burst");
  EXPECT_EQ(client.response().body, large);
  client.get("/echo");
  EXPECT_EQ(client.response().body, "GET /echo? ");
}

TEST_F(HttpServerTest, ExpectedContinueComesAfterTheRefusal) {
  refuse = [](const HttpHead& head) -> std::optional<HttpResponse> {
    if (head.path == "/no") return HttpResponse{.status = 401, .body = "no"};
    return std::nullopt;
  };
  start();
  TestClient client(port());
  const std::string head =
      " HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
  client.send("POST /echo" + head);
  EXPECT_EQ(client.response().status, 100);
  client.send("abc");
  EXPECT_EQ(client.response().body, "POST /echo? abc");
  client.send("POST /no" + head);
  const TestResponse refused = client.response();
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.body, "no");
  EXPECT_EQ(refused.header("connection"), "close");
  EXPECT_TRUE(client.is_closed());
}

TEST_F(HttpServerTest, ARefusalWithoutABodyKeepsTheConnection) {
  refuse = [](const HttpHead& head) -> std::optional<HttpResponse> {
    if (head.path == "/no") return HttpResponse{.status = 401, .body = "no"};
    return std::nullopt;
  };
  start();
  TestClient client(port());
  client.get("/no");
  EXPECT_EQ(client.response().status, 401);
  client.get("/echo");
  EXPECT_EQ(client.response().status, 200);
}

// The client sends all of it before it looks for an answer.
TEST_F(HttpServerTest, ARefusalReachesAClientThatIsStillSending) {
  refuse = [](const HttpHead&) { return HttpResponse{.status = 401, .body = "no"}; };
  start();
  for (int i = 0; i < 20; ++i) {
    TestClient client(port());
    client.post("/", std::string(8'000'000, 'x'));
    const std::string answer = client.receive_all();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 401 "));
    EXPECT_THAT(answer, testing::EndsWith("no"));
    EXPECT_FALSE(client.was_reset());
  }
  EXPECT_EQ(server->stats().body_bytes, 0);
}

TEST_F(HttpServerTest, GoneClientsAreSeenAtOnce) {
  start();
  for (const std::string path : {"/hold", "/stream"}) {
    const int before = closes(HttpClose::kClientGone);
    TestClient finishing(port()), resetting(port()), half(port());
    const int kept_before = kept;
    finishing.get(path);
    resetting.get(path);
    half.get(path);
    ASSERT_TRUE(eventually([&] { return kept == kept_before + 3; }));
    finishing.close();
    EXPECT_TRUE(eventually([&] { return closes(HttpClose::kClientGone) == before + 1; }));
    resetting.reset();
    EXPECT_TRUE(eventually([&] { return closes(HttpClose::kClientGone) == before + 2; }));
    half.shut_sending();
    EXPECT_TRUE(eventually([&] { return closes(HttpClose::kClientGone) == before + 3; }));
    EXPECT_TRUE(half.is_closed());
  }
  EXPECT_TRUE(has_no_connections());
  // What is left of the replies does nothing.
  on_thread([](TestHandler& handler) {
    for (const auto& reply : handler.held) {
      EXPECT_FALSE(reply->is_open());
      EXPECT_EQ(reply->buffered(), 0u);
      reply->send({});
      reply->begin({});
      reply->write("x");
      reply->end();
    }
    handler.held.clear();
  });
}

TEST_F(HttpServerTest, OnCloseIsToldAfterwardsToo) {
  std::shared_ptr<HttpReply> late;
  routes["/late"] = [&](TestHandler&, HttpRequest, std::shared_ptr<HttpReply> reply) {
    late = std::move(reply);
    ++kept;
  };
  start();
  TestClient client(port());
  client.get("/late");
  ASSERT_TRUE(eventually([this] { return kept == 1; }));
  client.close();
  ASSERT_TRUE(has_no_connections());
  on_thread([&](TestHandler&) {
    late->on_close([this](HttpClose reason) { ++closed[static_cast<size_t>(reason)]; });
    EXPECT_EQ(all_closes(), 0);  // not inside the call
    late.reset();
  });
  EXPECT_TRUE(eventually([this] { return closes(HttpClose::kClientGone) == 1; }));
}

TEST_F(HttpServerTest, AnEndedReplyLetsGoOfItsCallback) {
  auto token = std::make_shared<int>(1);
  routes["/token"] = [&](TestHandler&, HttpRequest, std::shared_ptr<HttpReply> reply) {
    // A circle until the answer ends.
    reply->on_close([token, reply](HttpClose) { ADD_FAILURE(); });
    reply->send({});
  };
  start();
  TestClient client(port());
  client.get("/token");
  EXPECT_EQ(client.response().status, 200);
  EXPECT_TRUE(eventually([&] { return token.use_count() == 1; }));
}

TEST_F(HttpServerTest, AReplyThatIsLetGoIsA500) {
  routes["/drop"] = [](TestHandler&, HttpRequest, std::shared_ptr<HttpReply>) {};
  routes["/drop-later"] = [](TestHandler& handler, HttpRequest, std::shared_ptr<HttpReply> reply) {
    handler.thread().post([reply = std::move(reply)] {});
  };
  routes["/drop-stream"] = [](TestHandler&, HttpRequest, std::shared_ptr<HttpReply> reply) {
    reply->begin({.body = "first"});
  };
  start();
  TestClient client(port());
  for (const std::string path : {"/drop", "/drop-later"}) {
    client.get(path);
    const TestResponse response = client.response();
    EXPECT_EQ(response.status, 500);
    EXPECT_THAT(response.body, StartsWith("500 "));
  }
  client.get("/drop-stream");
  EXPECT_EQ(client.response().status, 0);  // cut: the last chunk is missing
  EXPECT_TRUE(has_no_connections());
}

TEST_F(HttpServerTest, ExceptionsOfAHandlerAreA500) {
  routes["/throw"] = [](TestHandler&, HttpRequest, std::shared_ptr<HttpReply>) {
    throw std::bad_alloc();
  };
  routes["/keep-throw"] = [this](TestHandler& handler, HttpRequest,
                                 std::shared_ptr<HttpReply> reply) {
    keep(handler, std::move(reply));
    throw std::runtime_error("after keeping");
  };
  routes["/stream-throw"] = [](TestHandler&, HttpRequest, std::shared_ptr<HttpReply> reply) {
    reply->begin({.body = "first"});
    throw std::runtime_error("in a stream");
  };
  routes["/post-throw"] = [](TestHandler& handler, HttpRequest, std::shared_ptr<HttpReply> reply) {
    handler.thread().post([] { throw 1; });
    handler.thread().post([reply = std::move(reply)] { reply->send({.body = "ok"}); });
  };
  refuse = [](const HttpHead& head) -> std::optional<HttpResponse> {
    if (head.path == "/refuse-throw") throw std::bad_alloc();
    return std::nullopt;
  };
  start();
  TestClient client(port());
  client.get("/throw");
  EXPECT_EQ(client.response().status, 500);
  client.get("/keep-throw");
  EXPECT_EQ(client.response().status, 500);
  EXPECT_TRUE(eventually([this] { return closes(HttpClose::kFailed) == 1; }));
  client.get("/refuse-throw");
  EXPECT_EQ(client.response().status, 500);
  client.get("/post-throw");
  EXPECT_EQ(client.response().body, "ok");
  client.get("/stream-throw");
  EXPECT_EQ(client.response().status, 0);
  TestClient next(port());
  next.get("/echo");
  EXPECT_EQ(next.response().status, 200);
}

TEST_F(HttpServerTest, PostedWorkRunsInOrderOnItsThread) {
  options.threads = 2;
  start();
  std::vector<int> order;
  std::vector<std::thread::id> threads(2);
  for (size_t i = 0; i < 2; ++i) {
    on_thread(
        [&](TestHandler& handler) {
          threads[i] = std::this_thread::get_id();
          EXPECT_EQ(handler.thread().index(), static_cast<int>(i));
        },
        i);
  }
  EXPECT_NE(threads[0], threads[1]);
  for (int i = 0; i < 1000; ++i) {
    handlers[1]->thread().post([&, i] {
      EXPECT_EQ(std::this_thread::get_id(), threads[1]);
      order.push_back(i);
    });
  }
  on_thread(
      [&](TestHandler&) {
        EXPECT_EQ(order.size(), 1000u);
        EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
      },
      1);
}

TEST_F(HttpServerTest, Ticks) {
  start();
  EXPECT_TRUE(eventually([this] { return handlers[0]->ticks >= 3; }));
}

TEST_F(HttpServerTest, ConnectionsAreSpreadEvenly) {
  options.threads = 3;
  std::atomic<int> on[3] = {};
  routes["/where"] = [&](TestHandler& handler, HttpRequest, std::shared_ptr<HttpReply> reply) {
    ++on[static_cast<size_t>(handler.thread().index())];
    reply->send({});
  };
  start();
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 30; ++i) {
    clients.push_back(std::make_unique<TestClient>(port()));
    clients.back()->get("/where");
    EXPECT_EQ(clients.back()->response().status, 200);
  }
  for (const auto& count : on) EXPECT_EQ(count, 10);
}

TEST_F(HttpServerTest, NamesAndIPv6) {
  options.host = "localhost";
  start();
  EXPECT_GT(port(), 0);
}

TEST(HttpServerStart, ErrorsSayWhatToChange) {
  const auto make = [](HttpThread&) -> std::unique_ptr<HttpHandler> { return nullptr; };
  TestServer first;
  first.start();
  HttpServerOptions options;
  options.port = first.port();
  auto taken = HttpServer::start(options, make);
  ASSERT_FALSE(taken.has_value());
  EXPECT_EQ(taken.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(taken.error().message, HasSubstr(std::to_string(first.port())));
  EXPECT_THAT(taken.error().message, HasSubstr("in use"));

  options = {.host = "no.such.host.invalid", .port = 0};
  auto unknown = HttpServer::start(options, make);
  ASSERT_FALSE(unknown.has_value());
  EXPECT_THAT(unknown.error().message, HasSubstr("no.such.host.invalid"));

  options = {.host = "192.0.2.1", .port = 0};  // not of this machine
  auto foreign = HttpServer::start(options, make);
  ASSERT_FALSE(foreign.has_value());
  EXPECT_THAT(foreign.error().message, HasSubstr("192.0.2.1"));

  options = {.port = 0, .threads = 0};
  EXPECT_FALSE(HttpServer::start(options, make).has_value());
  options = {.port = 0};
  options.limits.header = 0;
  auto limit = HttpServer::start(options, make);
  ASSERT_FALSE(limit.has_value());
  EXPECT_THAT(limit.error().message, HasSubstr("header"));
}

}  // namespace
}  // namespace tidemill
