// The whole server over a scripted engine, through sockets.
#include "serve/server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "serve/http/http_for_tests.h"
#include "serve/scripted_engine.h"
#include "serve/sse_reader_for_tests.h"
#include "text/tokenizer_for_tests.h"

namespace tidemill {
namespace {

class ServerTest : public ::testing::Test {
 protected:
  void start(ScriptedOptions scripted = {}, ServerOptions options = {}, int threads = 2) {
    engine_ = std::make_unique<ScriptedEngine>(*mini_tokenizer(), scripted);
    options.http.port = 0;
    options.http.threads = threads;
    options.service.model_names = {"mini"};
    options.service.policy.thinking = false;
    auto server =
        Server::start(std::move(options), KeyRing::anonymous(), *engine_, *mini_tokenizer());
    ASSERT_TRUE(server) << server.error().message;
    server_ = *std::move(server);
  }

  static std::string body(const std::string& text, bool stream, int64_t max_tokens = 1000) {
    const Json json = {{"messages", {{{"role", "user"}, {"content", text}}}},
                       {"stream", stream},
                       {"max_tokens", max_tokens}};
    return json.dump();
  }
  TestClient ask(const std::string& text, bool stream, int64_t max_tokens = 1000,
                 int receive_buffer = 0) {
    TestClient client(server_->port(), receive_buffer);
    client.post("/v1/chat/completions", body(text, stream, max_tokens));
    return client;
  }
  static std::string text_of(const TestResponse& response) {
    std::string text;
    for (const StreamEvent& event : read_sse(response.body)) {
      if (event.data == kStreamDone) return text;
      const Json chunk = Json::parse(event.data);
      if (!chunk.contains("choices")) continue;
      for (const Json& choice : chunk["choices"]) {
        text += choice["delta"].value("content", std::string());
      }
    }
    return "without [DONE]: " + text;
  }

  // Nothing is left of any request.
  void expect_idle() {
    EXPECT_TRUE(eventually([&] { return server_->service().answers == 0; }));
    EXPECT_TRUE(
        eventually([&] { return server_->service().http.load()->stats().connections == 0; }));
    EXPECT_EQ(server_->service().streams, 0);
    EXPECT_EQ(server_->service().http.load()->stats().body_bytes, 0);
    EXPECT_EQ(engine_->stats().running, 0);
    const Stats stats = engine_->stats();
    EXPECT_EQ(stats.submitted, stats.finished);
    const ServeMetrics::Totals totals = server_->service().metrics.totals();
    int64_t finished = 0;
    for (const int64_t count : totals.by_outcome) finished += count;
    EXPECT_EQ(totals.received, finished);
    EXPECT_EQ(totals.in_flight, 0);
  }

  std::unique_ptr<ScriptedEngine> engine_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, AnswersOverASocket) {
  start();
  TestClient client(server_->port());
  for (int turn = 0; turn < 3; ++turn) {  // one connection
    client.post("/v1/chat/completions", body("say: one", false));
    EXPECT_EQ(Json::parse(client.response().body)["choices"][0]["message"]["content"], "one");
    client.post("/v1/chat/completions", body("say: two \xF0\x9F\x8C\x8A", true));
    EXPECT_EQ(text_of(client.response()), "two \xF0\x9F\x8C\x8A");
    client.post("/tokenize", R"({"prompt": "x"})");
    EXPECT_EQ(client.response().status, 200);
  }
  client.close();
  expect_idle();
}

// User cases 32 and 33: clients that leave in every way and at every time, while others go on.
TEST_F(ServerTest, ChurnLeavesNothingBehind) {
  start({.token_ms = 0.2});
  std::atomic<bool> stop{false};
  std::string expected;
  for (int i = 0; i < 60; ++i) expected += "word ";
  std::atomic<int> watched{0};
  std::thread watcher([&] {
    while (!stop) {
      EXPECT_EQ(text_of(ask("say: " + expected + "end", true).response()), expected + "end");
      ++watched;
    }
  });
  std::vector<std::thread> clients;
  for (int thread = 0; thread < 3; ++thread) {
    clients.emplace_back([&, thread] {
      for (int i = 0; i < 120; ++i) {
        const bool stream = i % 2 == 0;
        TestClient client = ask(i % 7 == 0 ? "hang" : "count", stream, 100000);
        switch ((i + thread) % 6) {
          case 0:  // at once
            client.reset();
            break;
          case 1:
            client.close();
            break;
          case 2:  // after the first bytes of a stream
            if (stream && i % 7 != 0) client.receive();
            client.reset();
            break;
          case 3:
            client.shut_sending();
            client.receive_all();
            break;
          case 4:  // in the middle of the body
            client.send(
                "POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 90\r\n\r\n{");
            client.close();
            break;
          default:
            std::this_thread::sleep_for(std::chrono::milliseconds(i % 5));
            client.close();
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  stop = true;
  watcher.join();
  EXPECT_GT(watched, 0);
  expect_idle();
}

TEST_F(ServerTest, SlowReadersAreCutOffAndOthersAreNot) {
  ServerOptions options;
  options.http.limits.buffer = 64 << 10;
  start({.context = int64_t{1} << 40}, options);
  const TestClient slow = ask("count", true, int64_t{1} << 39, 4096);
  EXPECT_EQ(text_of(ask("say: unhindered", true).response()), "unhindered");
  EXPECT_TRUE(eventually([&] {
    const auto records = server_->service().traces.recent(10);
    return std::any_of(records.begin(), records.end(), [](const RequestRecord& record) {
      return record.outcome == "abort" && record.reason == "slow_reader";
    });
  }));
  expect_idle();
}

// User case 47.
TEST_F(ServerTest, StopEndsWhatDoesNotEnd) {
  start({.token_ms = 1});
  TestClient endless = ask("hang", true);
  TestClient begun = ask("count", true, 100000);
  EXPECT_TRUE(begun.receive_until("data: "));
  EXPECT_TRUE(eventually([&] { return server_->service().answers == 2; }));
  EXPECT_EQ(server_->stop(Deadline::after(std::chrono::milliseconds(50))), 2);
  EXPECT_EQ(endless.response().status, 503);
  const std::string rest = begun.receive_all();
  EXPECT_NE(rest.find("shutting down"), std::string::npos);
  EXPECT_NE(rest.find("[DONE]"), std::string::npos);
}

TEST_F(ServerTest, StopReturnsAsSoonAsNothingIsLeft) {
  start();
  EXPECT_EQ(server_->stop(Deadline::after(std::chrono::hours(1))), 0);
}

}  // namespace
}  // namespace tidemill
