// A client of bare sockets and a server with a handler made of functions. Every wait ends:
// kPatience is what only a machine in trouble needs.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/file_descriptor.h"
#include "serve/http/http_server.h"
#include "serve/http/http_text.h"

namespace tidemill {

inline constexpr std::chrono::seconds kPatience{30};

// Until `condition` holds; false after kPatience.
template <typename Condition>
bool eventually(Condition condition) {
  const Deadline deadline = Deadline::after(kPatience);
  while (!condition()) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

struct TestResponse {
  int status = 0;  // 0: the connection ended before a whole answer
  std::vector<HttpHeader> headers;
  std::string body;

  std::string header(std::string_view name) const {
    return std::string(HttpHead{.headers = headers}.header(name));
  }
};

class TestClient {
 public:
  explicit TestClient(uint16_t port, int receive_buffer = 0)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer > 0) {
      setsockopt(fd(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    EXPECT_TRUE(connected_) << "errno " << errno;
  }

  int fd() const { return socket_.get(); }

  // False: the other side has closed.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  void get(const std::string& target, const std::string& headers = "") {
    send("GET " + target + " HTTP/1.1\r\nHost: t\r\n" + headers + "\r\n");
  }
  void post(const std::string& target, const std::string& body, const std::string& headers = "") {
    send("POST " + target + " HTTP/1.1\r\nHost: t\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  void shut_sending() { ::shutdown(fd(), SHUT_WR); }
  void close() { socket_.close(); }
  void reset() {
    const linger now{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    socket_.close();
  }

  // Adds to received(); false at the end of the connection, or after kPatience.
  bool receive() {
    pollfd readable{.fd = fd(), .events = POLLIN, .revents = 0};
    if (poll(&readable, 1, static_cast<int>(std::chrono::milliseconds(kPatience).count())) <= 0) {
      ADD_FAILURE() << "nothing came";
      return false;
    }
    char bytes[65536];
    const ssize_t size = ::recv(fd(), bytes, sizeof bytes, 0);
    was_reset_ = size < 0;
    if (size > 0) received_.append(bytes, static_cast<size_t>(size));
    return size > 0;
  }
  std::string& received() { return received_; }
  bool was_reset() const { return was_reset_; }

  bool receive_until(std::string_view text) {
    while (received_.find(text) == std::string::npos) {
      if (!receive()) return false;
    }
    return true;
  }
  std::string receive_all() {
    while (receive()) {
    }
    return received_;
  }
  // True if the server closes, with or without bytes before.
  bool is_closed() {
    receive_all();
    return true;
  }

  // One answer, taken out of received().
  TestResponse response(bool head_only = false) {
    TestResponse out;
    if (!receive_until("\r\n\r\n")) return out;
    const size_t head_size = received_.find("\r\n\r\n") + 4;
    size_t line = received_.find("\r\n") + 2;
    const int status = std::atoi(received_.c_str() + sizeof("HTTP/1.1"));
    while (line < head_size - 2) {
      const size_t end = received_.find("\r\n", line);
      const size_t colon = received_.find(": ", line);
      out.headers.push_back(
          {received_.substr(line, colon - line), received_.substr(colon + 2, end - colon - 2)});
      line = end + 2;
    }
    received_.erase(0, head_size);
    out.status = status;
    if (head_only) return out;
    bool whole = true;
    if (const std::string length = out.header("Content-Length"); !length.empty()) {
      const auto size = static_cast<size_t>(std::atoll(length.c_str()));
      while (whole && received_.size() < size) whole = receive();
      out.body = received_.substr(0, size);
      received_.erase(0, out.body.size());
    } else if (out.header("Transfer-Encoding") == "chunked") {
      for (;;) {
        const std::optional<std::string> chunk = this->chunk();
        whole = chunk.has_value();
        if (!whole || chunk->empty()) break;
        out.body += *chunk;
      }
    } else if (status >= 200 && status != 204 && status != 304) {
      out.body = receive_all();
      received_.clear();
    }
    if (!whole) out.status = 0;
    return out;
  }
  // The next one of a body; "": the last.
  std::optional<std::string> chunk() {
    if (!receive_until("\r\n")) return std::nullopt;
    const size_t size = std::strtoull(received_.c_str(), nullptr, 16);
    const size_t begin = received_.find("\r\n") + 2;
    while (received_.size() < begin + size + 2) {
      if (!receive()) return std::nullopt;
    }
    std::string out = received_.substr(begin, size);
    received_.erase(0, begin + size + 2);
    return out;
  }

 private:
  FileDescriptor socket_;
  bool connected_ = false;
  bool was_reset_ = false;
  std::string received_;
};

// Runs on the server's threads: what tests look at is behind the mutex or atomic.
class TestHandler final : public HttpHandler {
 public:
  using Handle = std::function<void(TestHandler&, HttpRequest, std::shared_ptr<HttpReply>)>;

  TestHandler(HttpThread& thread, const std::map<std::string, Handle>& routes,
              std::function<std::optional<HttpResponse>(const HttpHead&)> refuse)
      : thread_(thread), routes_(routes), refuse_(std::move(refuse)) {}

  std::optional<HttpResponse> refuse(const HttpHead& head) override {
    return refuse_ ? refuse_(head) : std::nullopt;
  }
  void handle(HttpRequest request, std::shared_ptr<HttpReply> reply) override {
    const auto route = routes_.find(request.path);
    if (route == routes_.end()) {
      reply->send({.status = 404, .body = "no such path"});
      return;
    }
    route->second(*this, std::move(request), std::move(reply));
  }
  std::string error_body(int status, const std::string& message, const HttpHead*) override {
    return std::to_string(status) + " " + message;
  }
  void tick() override { ++ticks; }

  HttpThread& thread() { return thread_; }
  // For answers that come later.
  std::vector<std::shared_ptr<HttpReply>> held;
  std::atomic<int> ticks = 0;

 private:
  HttpThread& thread_;
  const std::map<std::string, Handle>& routes_;
  std::function<std::optional<HttpResponse>(const HttpHead&)> refuse_;
};

// A server on a port of the system's choice. Routes: /echo answers method, target and body;
// /hold keeps the reply; /stream begins a stream with "first" and keeps the reply. Closes of kept
// replies are counted by reason.
class TestServer {
 public:
  explicit TestServer(HttpLimits limits = {}, int threads = 1) {
    options.port = 0;
    options.limits = limits;
    options.threads = threads;
    routes["/echo"] = [](TestHandler&, HttpRequest request, std::shared_ptr<HttpReply> reply) {
      reply->send(
          {.content_type = "text/plain",
           .body = request.method + " " + request.path + "?" + request.query + " " + request.body});
    };
    routes["/hold"] = [this](TestHandler& handler, HttpRequest, std::shared_ptr<HttpReply> reply) {
      keep(handler, std::move(reply));
    };
    routes["/stream"] = [this](TestHandler& handler, HttpRequest,
                               std::shared_ptr<HttpReply> reply) {
      reply->begin({.content_type = "text/event-stream", .body = "first"});
      keep(handler, std::move(reply));
    };
  }

  void start() {
    auto started = HttpServer::start(options, [this](HttpThread& thread) {
      auto handler = std::make_unique<TestHandler>(thread, routes, refuse);
      handlers.push_back(handler.get());
      return handler;
    });
    ASSERT_TRUE(started.has_value()) << started.error().message;
    server = std::move(*started);
  }
  uint16_t port() const { return server->port(); }

  void keep(TestHandler& handler, std::shared_ptr<HttpReply> reply) {
    reply->on_close([this](HttpClose reason) { ++closed[static_cast<size_t>(reason)]; });
    handler.held.push_back(std::move(reply));
    ++kept;
  }
  int closes(HttpClose reason) const { return closed[static_cast<size_t>(reason)]; }
  int all_closes() const {
    int sum = 0;
    for (const auto& count : closed) sum += count;
    return sum;
  }

  // Runs `work` on a thread of the server and waits for it.
  void on_thread(const std::function<void(TestHandler&)>& work, size_t index = 0) {
    std::promise<void> done;
    handlers.at(index)->thread().post([&] {
      work(*handlers[index]);
      done.set_value();
    });
    ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  }
  bool has_no_connections() {
    return eventually([this] { return server->stats().connections == 0; });
  }

  HttpServerOptions options;
  std::map<std::string, TestHandler::Handle> routes;
  std::function<std::optional<HttpResponse>(const HttpHead&)> refuse;
  std::vector<TestHandler*> handlers;
  std::atomic<int> kept = 0;
  std::atomic<int> closed[4] = {};
  // Last, so that it goes first.
  std::unique_ptr<HttpServer> server;
};

inline size_t open_descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

}  // namespace tidemill
