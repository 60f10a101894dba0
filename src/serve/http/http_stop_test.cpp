// The end of a server: with requests in it, with replies and callbacks that others hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/http/http_for_tests.h"
#include "serve/http/http_server.h"

namespace tidemill {
namespace {

using testing::HasSubstr;

class HttpStop : public testing::Test, public TestServer {};

bool can_connect(uint16_t port) {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

TEST_F(HttpStop, ReturnsAtOnceWithoutRequests) {
  options.threads = 2;
  start();
  TestClient idle(port()), used(port()), half(port());
  used.get("/echo");
  EXPECT_EQ(used.response().status, 200);
  half.send("GET /ec");
  ASSERT_TRUE(eventually([this] { return server->stats().connections == 3; }));
  EXPECT_EQ(server->stop(Deadline::after(kPatience * 10)), 0);
  for (TestClient* client : {&idle, &used, &half}) EXPECT_EQ(client->receive_all(), "");
  EXPECT_FALSE(can_connect(port()));
  EXPECT_TRUE(has_no_connections());
  EXPECT_EQ(server->stop(Deadline::after(kPatience)), 0);
}

TEST_F(HttpStop, WaitsForAnswers) {
  start();
  TestClient stream(port()), whole(port()), idle(port()), body(port());
  stream.get("/stream");
  whole.get("/hold");
  body.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\na");
  ASSERT_TRUE(eventually([this] { return kept == 2 && server->stats().body_bytes == 1; }));
  std::atomic<bool> stopped = false;
  std::thread stopping([&] {
    EXPECT_EQ(server->stop(Deadline::never()), 0);
    stopped = true;
  });
  EXPECT_EQ(idle.receive_all(), "");  // closed: the server is stopping
  body.send("bc");
  const TestResponse echoed = body.response();
  EXPECT_EQ(echoed.body, "POST /echo? abc");
  EXPECT_EQ(echoed.header("connection"), "close");
  EXPECT_FALSE(stopped);
  on_thread([](TestHandler& handler) {
    for (const auto& reply : handler.held) {
      reply->send({.body = "held"});
      reply->write("last");
    }
  });
  const TestResponse held = whole.response();
  EXPECT_EQ(held.body, "held");
  EXPECT_EQ(held.header("connection"), "close");
  EXPECT_FALSE(stopped);
  on_thread([](TestHandler& handler) {
    for (const auto& reply : handler.held) reply->end();
  });
  EXPECT_EQ(stream.response().body, "firstlast");
  EXPECT_EQ(stream.receive_all(), "");
  stopping.join();
  EXPECT_EQ(all_closes(), 0);
  for (TestClient* client : {&stream, &whole, &idle, &body}) client->close();
  EXPECT_TRUE(has_no_connections());
}

TEST_F(HttpStop, ClosesWhatIsLeftAtTheDeadline) {
  options.threads = 2;
  start();
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<TestClient>(port()));
    clients.back()->get(i == 0 ? "/hold" : "/stream");
  }
  ASSERT_TRUE(eventually([this] { return kept == 8; }));
  int left = 8;
  on_thread([&](TestHandler& handler) {
    for (const auto& reply : handler.held) {
      reply->end();  // not of the one that has not begun
      if (!reply->is_open()) --left;
    }
  });
  EXPECT_GE(left, 1);
  EXPECT_LT(left, 8);
  EXPECT_EQ(server->stop(Deadline::after(std::chrono::milliseconds(100))), left);
  EXPECT_TRUE(eventually([&] { return closes(HttpClose::kShutdown) == left; }));
  EXPECT_EQ(all_closes(), left);
  for (const auto& client : clients) client->is_closed();
  clients.clear();
  EXPECT_TRUE(has_no_connections());
}

TEST_F(HttpStop, DestroyedWithStreamsAndCallbacks) {
  start();
  const size_t descriptors = open_descriptors();
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::make_unique<TestClient>(port()));
    clients.back()->get(i % 2 == 0 ? "/hold" : "/stream");
  }
  ASSERT_TRUE(eventually([this] { return kept == 20; }));
  server.reset();
  EXPECT_EQ(closes(HttpClose::kShutdown), 20);
  for (const auto& client : clients) client->is_closed();
  clients.clear();
  EXPECT_LT(open_descriptors(), descriptors);
}

// Replies that outlive the server, and circles of replies and callbacks.
TEST_F(HttpStop, RepliesOutliveTheServer) {
  std::vector<std::shared_ptr<HttpReply>> outside;
  auto token = std::make_shared<int>(1);
  routes["/outside"] = [&](TestHandler&, HttpRequest, std::shared_ptr<HttpReply> reply) {
    reply->on_close([token, reply](HttpClose) {});
    outside.push_back(reply);
    reply->begin({.body = "first"});
  };
  start();
  TestClient one(port()), two(port());
  one.get("/outside");
  two.get("/outside");
  ASSERT_TRUE(one.receive_until("first"));
  ASSERT_TRUE(two.receive_until("first"));
  one.close();
  EXPECT_TRUE(eventually([this] { return server->stats().connections == 1; }));
  server.reset();
  EXPECT_EQ(token.use_count(), 1);
  for (const auto& reply : outside) EXPECT_FALSE(reply->is_open());
  outside.clear();
}

TEST_F(HttpStop, WorkIsDroppedNotRun) {
  auto token = std::make_shared<int>(1);
  std::shared_ptr<HttpReply> kept_by_work;
  start();
  TestClient client(port());
  client.get("/hold");
  ASSERT_TRUE(eventually([this] { return kept == 1; }));
  std::atomic<bool> posting = true;
  HttpThread& thread = handlers[0]->thread();
  // Posts to itself without an end, and from outside until the server is gone.
  std::function<void()> again = [&] { thread.post([&, token] { again(); }); };
  thread.post(again);
  std::thread outside([&] {
    while (posting) thread.post([token] {});
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  posting = false;
  outside.join();
  server.reset();
  EXPECT_EQ(token.use_count(), 1);
}

TEST_F(HttpStop, DestroyedWhileRequestsComeIn) {
  for (int round = 0; round < 10; ++round) {
    TestServer other({}, 2);
    other.start();
    const uint16_t to = other.port();
    std::atomic<bool> going = true;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] {
        while (going && can_connect(to)) {
          const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM, 0));
          sockaddr_in address{};
          address.sin_family = AF_INET;
          address.sin_port = htons(to);
          address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
          if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
            return;
          }
          const std::string request = std::string("GET ") + (i % 2 == 0 ? "/echo" : "/stream") +
                                      " HTTP/1.1\r\nHost: a\r\n\r\n";
          ::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL);
          char byte = 0;
          if (i < 2) ::recv(socket.get(), &byte, 1, 0);
        }
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (round % 2 == 0) other.server->stop(Deadline::after(std::chrono::milliseconds(5)));
    other.server.reset();
    going = false;
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace tidemill
