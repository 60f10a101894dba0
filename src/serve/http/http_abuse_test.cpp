// Clients that are broken, slow, gone or malicious: what they get, that nothing of them stays, and
// that others do not notice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <random>

#include "base/log.h"
#include "serve/http/http_for_tests.h"
#include "serve/http/http_server.h"

namespace tidemill {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::StartsWith;

class HttpAbuse : public testing::Test, public TestServer {
 protected:
  // The server is well: a request is answered, and in the end nothing is left of anyone.
  void expect_well() {
    {
      TestClient client(port());
      client.get("/echo?well");
      EXPECT_EQ(client.response().body, "GET /echo?well ");
    }
    EXPECT_TRUE(has_no_connections());
    EXPECT_EQ(server->stats().body_bytes, 0);
  }
};

std::string random_bytes(std::mt19937& random, size_t size) {
  std::string out(size, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

TEST_F(HttpAbuse, TenThousandGarbageRequests) {
  options.limits.header_timeout = milliseconds(300);
  options.limits.body_timeout = milliseconds(300);
  start();
  const size_t descriptors = open_descriptors();
  const std::string seeds[] = {
      "POST /echo?a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
      "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
      "GET /echo HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n"};
  std::mt19937 random(7);
  constexpr int kRequests = 10'000;
  constexpr int kAtOnce = 50;
  for (int done = 0; done < kRequests; done += kAtOnce) {
    std::vector<std::unique_ptr<TestClient>> clients;
    for (int i = 0; i < kAtOnce; ++i) {
      std::string text;
      if (i % 4 == 0) {
        text = random_bytes(random, 1 + random() % 2000);
      } else {
        text = seeds[random() % std::size(seeds)];
        for (size_t edits = 1 + random() % 4; edits > 0; --edits) {
          text[random() % text.size()] = static_cast<char>(random());
        }
      }
      clients.push_back(std::make_unique<TestClient>(port()));
      clients.back()->send(text);
    }
    for (size_t i = 0; i < clients.size(); ++i) {
      // Some wait for what they get, some do not. All that comes is HTTP.
      clients[i]->shut_sending();
      if (i % 3 == 0) continue;
      const std::string answer = clients[i]->receive_all();
      if (!answer.empty()) {
        ASSERT_THAT(answer, StartsWith("HTTP/1.1 "));
      }
    }
  }
  expect_well();
  EXPECT_GT(server->stats().refused, kRequests / 10);
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= descriptors; }))
      << open_descriptors() << " of " << descriptors;
}

// Several on one connection: it is closed behind the first that is malformed.
TEST_F(HttpAbuse, NothingBehindAMalformedRequestIsRead) {
  std::atomic<int> handled = 0;
  routes["/count"] = [&](TestHandler&, HttpRequest, std::shared_ptr<HttpReply> reply) {
    ++handled;
    reply->send({});
  };
  start();
  const std::string good = "GET /count HTTP/1.1\r\nHost: a\r\n\r\n";
  for (const std::string bad :
       {"GET /count HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
        "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: "
        "4\r\n\r\n",
        "POST /count HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "GET /count HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n", "\n\n"}) {
    handled = 0;
    TestClient client(port());
    client.send(good + bad + good);
    EXPECT_EQ(client.response().status, 200);
    const TestResponse refused = client.response();
    EXPECT_EQ(refused.status, 400) << bad;
    EXPECT_EQ(refused.header("connection"), "close");
    EXPECT_THAT(refused.body, StartsWith("400 "));
    EXPECT_EQ(client.receive_all(), "");
    EXPECT_FALSE(client.was_reset());
    EXPECT_EQ(handled, 1) << bad;
  }
  expect_well();
}

TEST_F(HttpAbuse, HeaderBomb) {
  start();
  TestClient line(port());
  line.send("GET /" + std::string(1 << 20, 'a'));
  EXPECT_EQ(line.response().status, 431);
  EXPECT_TRUE(line.is_closed());
  TestClient headers(port());
  std::string bomb = "GET / HTTP/1.1\r\nHost: a\r\n";
  for (int i = 0; i < 100'000; ++i) bomb += "a: b\r\n";
  headers.send(bomb);
  EXPECT_EQ(headers.response().status, 431);
  EXPECT_TRUE(headers.is_closed());
  EXPECT_EQ(server->stats().refused, 2);
  expect_well();
}

TEST_F(HttpAbuse, BodyBomb) {
  options.limits.body = 100'000;
  start();
  TestClient client(port());
  client.post("/echo", std::string(1'000'000, 'x'));
  EXPECT_EQ(client.response().status, 413);
  EXPECT_TRUE(client.is_closed());
  TestClient claims(port());
  claims.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999999\r\n\r\n");
  EXPECT_EQ(claims.response().status, 413);
  TestClient exact(port());
  exact.post("/echo", std::string(100'000, 'x'));
  EXPECT_EQ(exact.response().status, 200);
  exact.close();
  claims.close();
  expect_well();
}

TEST_F(HttpAbuse, ChunkBomb) {
  options.limits.body = 100'000;
  start();
  const std::string head = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  TestClient many(port());
  std::string bomb = head;
  for (int i = 0; i < 200'000; ++i) bomb += "1\r\nx\r\n";
  many.send(bomb);
  EXPECT_EQ(many.response().status, 413);
  TestClient large(port());
  large.send(head + "7fffffffffffffff\r\n");
  EXPECT_EQ(large.response().status, 413);
  TestClient line(port());
  line.send(head + "1;" + std::string(1'000'000, 'x'));
  EXPECT_EQ(line.response().status, 400);
  for (TestClient* client : {&many, &large, &line}) EXPECT_TRUE(client->is_closed());
  expect_well();
}

TEST_F(HttpAbuse, BodiesOfAllTogetherAreBounded) {
  options.limits.bodies = 100'000;
  start();
  TestClient first(port());
  first.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 60001\r\n\r\n" +
             std::string(60'000, 'x'));
  ASSERT_TRUE(eventually([this] { return server->stats().body_bytes == 60'000; }));
  TestClient second(port());
  second.post("/echo", std::string(50'000, 'x'));
  const TestResponse refused = second.response();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.header("retry-after"), "1");
  // In chunks it is counted as it grows.
  TestClient chunked(port());
  chunked.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 50; ++i) chunked.send("3e8\r\n" + std::string(1000, 'x') + "\r\n");
  EXPECT_EQ(chunked.response().status, 503);
  // Below it all goes on.
  TestClient third(port());
  third.post("/echo", std::string(30'000, 'x'));
  EXPECT_EQ(third.response().status, 200);
  first.send("x");
  EXPECT_EQ(first.response().status, 200);
  for (TestClient* client : {&first, &second, &chunked, &third}) client->close();
  expect_well();
}

// What is announced costs nothing: else eight clients that send no more than a head would shut
// everyone out.
TEST_F(HttpAbuse, BodiesThatAreOnlyAnnouncedTakeNoRoom) {
  options.limits.body = 100'000;
  options.limits.bodies = 100'000;
  start();
  std::vector<std::unique_ptr<TestClient>> announcers;
  for (int i = 0; i < 20; ++i) {
    announcers.push_back(std::make_unique<TestClient>(port()));
    announcers.back()->send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 90000\r\n\r\n");
  }
  TestClient client(port());
  client.post("/echo", std::string(90'000, 'x'));
  EXPECT_EQ(client.response().status, 200);
  for (const auto& announcer : announcers) announcer->close();
  client.close();
  expect_well();
}

TEST_F(HttpAbuse, ABodyThatIsGivenUpIsGivenBack) {
  start();
  for (int i = 0; i < 50; ++i) {
    TestClient client(port());
    client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nabc");
    ASSERT_TRUE(eventually([this] { return server->stats().body_bytes == 3; }));
    if (i % 2 == 0) client.reset();
    client.close();
    ASSERT_TRUE(eventually([this] { return server->stats().body_bytes == 0; }));
  }
  expect_well();
}

TEST_F(HttpAbuse, SlowHead) {
  options.limits.header_timeout = milliseconds(200);
  start();
  TestClient client(port());
  std::thread sender([&] {
    // Never idle, never done.
    const std::string line = "GET / HTTP/1.1\r\nX: " + std::string(5000, 'x');
    for (const char c : line) {
      if (!client.send(std::string(1, c))) break;
      std::this_thread::sleep_for(milliseconds(10));
    }
  });
  EXPECT_EQ(client.response().status, 408);
  EXPECT_TRUE(client.is_closed());
  sender.join();
  expect_well();
}

TEST_F(HttpAbuse, SlowBody) {
  options.limits.body_timeout = milliseconds(200);
  start();
  TestClient silent(port());
  silent.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(silent.response().status, 408);
  EXPECT_TRUE(silent.is_closed());
  // A byte now and then does not hold it for ever.
  TestClient dripping(port());
  dripping.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
  std::thread sender([&] {
    while (dripping.send("x")) std::this_thread::sleep_for(milliseconds(10));
  });
  EXPECT_EQ(dripping.response().status, 408);
  EXPECT_TRUE(dripping.is_closed());
  sender.join();
  dripping.close();
  silent.close();
  expect_well();
}

TEST_F(HttpAbuse, SilentConnectionsAreClosed) {
  options.limits.idle_timeout = milliseconds(200);
  start();
  TestClient silent(port());
  EXPECT_EQ(silent.receive_all(), "");
  TestClient once(port());
  once.get("/echo");
  EXPECT_EQ(once.response().status, 200);
  EXPECT_EQ(once.receive_all(), "");
  silent.close();
  once.close();
  // An answer that takes longer than that is not idle.
  TestClient held(port());
  held.get("/stream");
  ASSERT_TRUE(held.receive_until("first"));
  std::this_thread::sleep_for(milliseconds(600));
  on_thread([](TestHandler& handler) { handler.held.back()->end(); });
  EXPECT_EQ(held.response().body, "first");
  held.close();
  expect_well();
}

TEST_F(HttpAbuse, HalfRequestsOfClientsThatGo) {
  start();
  const std::string whole = "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
  for (size_t size = 0; size < whole.size(); ++size) {
    TestClient client(port());
    client.send(whole.substr(0, size));
    if (size % 3 == 0) client.reset();
    if (size % 3 == 1) client.shut_sending();
  }
  expect_well();
}

TEST_F(HttpAbuse, AThousandAbortedStreams) {
  options.threads = 2;
  start();
  const size_t descriptors = open_descriptors();
  TestClient bystander(port());
  bystander.get("/stream");
  ASSERT_TRUE(bystander.receive_until("first\r\n"));
  bystander.received().clear();
  const int before = kept;
  constexpr int kStreams = 1000;
  for (int begun = 0; begun < kStreams; begun += 100) {
    std::vector<std::unique_ptr<TestClient>> clients;
    for (int i = 0; i < 100; ++i) {
      clients.push_back(std::make_unique<TestClient>(port()));
      clients.back()->get("/stream");
    }
    // At every moment: before the first bytes have come, between, after.
    for (size_t i = 0; i < clients.size(); ++i) {
      if (i % 2 == 0) clients[i]->receive_until("first");
      if (i % 3 == 0) clients[i]->reset();
      if (i % 3 == 1) clients[i]->shut_sending();
    }
    for (size_t thread = 0; thread < 2; ++thread) {
      on_thread(
          [](TestHandler& handler) {
            for (const auto& reply : handler.held) reply->write("more");
          },
          thread);
    }
  }
  ASSERT_TRUE(eventually([&] { return server->stats().connections == 1; }));
  EXPECT_EQ(closes(HttpClose::kClientGone), kept - before);
  EXPECT_GE(kept - before, kStreams / 2);
  ASSERT_TRUE(bystander.receive_until("4\r\nmore\r\n"));
  bystander.close();
  expect_well();
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= descriptors; }))
      << open_descriptors() << " of " << descriptors;
}

TEST_F(HttpAbuse, ASlowReaderIsClosedAndDelaysNobody) {
  options.limits.buffer = 100'000;
  start();
  TestClient slow(port(), 4096);
  slow.get("/stream");
  ASSERT_TRUE(eventually([this] { return kept == 1; }));
  TestClient quick(port());
  quick.get("/stream");
  ASSERT_TRUE(eventually([this] { return kept == 2; }));
  ASSERT_TRUE(quick.receive_until("first\r\n"));
  const std::string event(10'000, 'e');
  int rounds = 0;
  while (closes(HttpClose::kSlowReader) == 0 && rounds < 5000) {
    ++rounds;
    quick.received().clear();
    on_thread([&](TestHandler& handler) {
      EXPECT_LE(handler.held[0]->buffered(), 120'000u);
      for (const auto& reply : handler.held) reply->write(event);
    });
    ASSERT_TRUE(quick.receive_until("e\r\n"));
  }
  EXPECT_EQ(closes(HttpClose::kSlowReader), 1);
  EXPECT_LT(rounds, 5000);
  on_thread([](TestHandler& handler) {
    EXPECT_FALSE(handler.held[0]->is_open());
    EXPECT_TRUE(handler.held[1]->is_open());
    handler.held[1]->end();
  });
  slow.is_closed();
  EXPECT_TRUE(slow.was_reset());
  slow.close();
  quick.close();
  expect_well();
}

TEST_F(HttpAbuse, NothingTakenForWriteTimeoutIsASlowReader) {
  options.limits.write_timeout = milliseconds(200);
  const std::string large(30'000'000, 'x');
  routes["/large"] = [&](TestHandler&, HttpRequest, std::shared_ptr<HttpReply> reply) {
    reply->send({.body = large});
  };
  routes["/burst"] = [&](TestHandler& handler, HttpRequest, std::shared_ptr<HttpReply> reply) {
    reply->begin({.body = large});
    keep(handler, std::move(reply));
  };
  start();
  TestClient whole(port(), 4096);
  whole.get("/large");
  EXPECT_TRUE(eventually([this] { return server->stats().accepted == 1; }));
  EXPECT_TRUE(has_no_connections());
  TestClient stream(port(), 4096);
  stream.get("/burst");
  EXPECT_TRUE(eventually([this] { return closes(HttpClose::kSlowReader) == 1; }));
  whole.close();
  stream.close();
  expect_well();
}

TEST_F(HttpAbuse, ConnectionsBeyondTheLimitAreTurnedAway) {
  options.limits.connections = 3;
  start();
  std::vector<std::unique_ptr<TestClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<TestClient>(port()));
    clients.back()->get("/stream");
    ASSERT_TRUE(clients.back()->receive_until("first"));
  }
  for (int i = 0; i < 100; ++i) {
    TestClient client(port());
    client.get("/echo");
    const TestResponse response = client.response();
    EXPECT_EQ(response.status, 503);
    EXPECT_EQ(response.header("retry-after"), "1");
    EXPECT_EQ(response.header("connection"), "close");
    EXPECT_THAT(response.body, StartsWith("503 "));
    EXPECT_EQ(client.receive_all(), "");
  }
  EXPECT_EQ(server->stats().connections, 3);
  EXPECT_EQ(server->stats().refused, 100);
  clients.pop_back();
  ASSERT_TRUE(eventually([this] { return server->stats().connections == 2; }));
  {
    TestClient client(port());
    client.get("/echo");
    EXPECT_EQ(client.response().status, 200);
  }
  clients.clear();
  expect_well();
}

// The system has no descriptor for a connection: the server waits, and serves it when it has.
TEST_F(HttpAbuse, NoDescriptorsLeft) {
  set_log_level(LogLevel::kOff);
  start();
  TestClient open(port());
  open.get("/echo");
  EXPECT_EQ(open.response().status, 200);
  // Takes what is free, then gives one to the client to come.
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  rlimit few = limit;
  few.rlim_cur = 256;
  setrlimit(RLIMIT_NOFILE, &few);
  std::vector<FileDescriptor> taken;
  for (;;) {
    FileDescriptor one(dup(0));
    if (!one.valid()) break;
    taken.push_back(std::move(one));
  }
  ASSERT_FALSE(taken.empty());
  taken.pop_back();
  TestClient second(port());
  rusage before{};
  getrusage(RUSAGE_SELF, &before);
  second.get("/echo?late");
  open.get("/echo");
  EXPECT_EQ(open.response().status, 200);
  std::this_thread::sleep_for(milliseconds(500));
  rusage after{};
  getrusage(RUSAGE_SELF, &after);
  taken.clear();
  setrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_EQ(second.response().body, "GET /echo?late ");
  // Waiting is not spinning.
  const auto seconds = [](const rusage& usage) {
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  EXPECT_LT(seconds(after) - seconds(before), 0.4);
  set_log_level(LogLevel::kWarning);
  open.close();
  second.close();
  expect_well();
}

}  // namespace
}  // namespace tidemill
