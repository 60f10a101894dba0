// The service without sockets: a handler on a thread that a test turns by hand, a scripted engine,
// replies that are read back.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "serve/scripted_engine.h"
#include "serve/service/service_handler.h"
#include "text/tokenizer_for_tests.h"

namespace tidemill {

class ManualThread : public HttpThread {
 public:
  int index() const override { return 0; }
  void post(std::function<void()> work) override {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
  void turn() {
    for (;;) {
      std::function<void()> work;
      {
        const std::lock_guard lock(mutex_);
        if (work_.empty()) return;
        work = std::move(work_.front());
        work_.pop_front();
      }
      work();
    }
  }

 private:
  std::mutex mutex_;
  std::deque<std::function<void()>> work_;
};

// What has come of an answer.
struct Received {
  bool begun = false;
  bool ended = false;
  int status = 0;
  std::string content_type;
  std::vector<HttpHeader> headers;
  std::string body;
  std::function<void(HttpClose)> closed;

  Json json() const {
    const Result<Json> json = parse_json(body);
    EXPECT_TRUE(json) << body;
    return json ? *json : Json();
  }
  std::string header(std::string_view name) const {
    for (const HttpHeader& header : headers) {
      if (header.name == name) return header.value;
    }
    return "";
  }
};

class ManualReply : public HttpReply {
 public:
  explicit ManualReply(std::shared_ptr<Received> received) : received_(std::move(received)) {}
  void send(HttpResponse response) override {
    EXPECT_FALSE(received_->begun);
    take(std::move(response));
    received_->ended = true;
  }
  void begin(HttpResponse head) override {
    EXPECT_FALSE(received_->begun);
    take(std::move(head));
  }
  void write(std::string_view bytes) override {
    EXPECT_TRUE(received_->begun && !received_->ended);
    received_->body += bytes;
  }
  void end() override {
    EXPECT_TRUE(received_->begun && !received_->ended);
    received_->ended = true;
  }
  bool is_open() const override { return !received_->ended; }
  size_t buffered() const override { return 0; }
  void on_close(std::function<void(HttpClose)> closed) override {
    received_->closed = std::move(closed);
  }

 private:
  void take(HttpResponse response) {
    received_->begun = true;
    received_->status = response.status;
    received_->content_type = response.content_type;
    received_->headers = std::move(response.headers);
    received_->body = std::move(response.body);
  }
  std::shared_ptr<Received> received_;
};

class ServicePlant {
 public:
  explicit ServicePlant(ScriptedOptions engine = {}, ServiceOptions options = {},
                        KeyRing keys = KeyRing::anonymous())
      : engine_(*mini_tokenizer(), engine) {
    options.model_names = {"mini"};
    options.policy.thinking = false;
    auto made = Service::create(std::move(options), std::move(keys), engine_, *mini_tokenizer());
    EXPECT_TRUE(made) << (made ? "" : made.error().message);
    service_ = std::move(*made);
    handler_ = std::make_unique<ServiceHandler>(*service_, thread_, 1);
  }

  static HttpRequest request(std::string method, std::string path, const Json& body = {}) {
    HttpRequest request;
    request.method = std::move(method);
    request.path = std::move(path);
    request.peer = "127.0.0.1:50000";
    request.headers = {{"Host", "127.0.0.1:8000"}};
    request.arrived = Clock::now();
    if (!body.is_null()) request.body = body.dump();
    return request;
  }

  // As the server does: refuse(), then handle().
  std::shared_ptr<Received> send(HttpRequest request) {
    auto received = std::make_shared<Received>();
    auto reply = std::make_shared<ManualReply>(received);
    if (std::optional<HttpResponse> refusal = handler_->refuse(request)) {
      reply->send(*std::move(refusal));
    } else {
      handler_->handle(std::move(request), std::move(reply));
    }
    return received;
  }
  std::shared_ptr<Received> post(std::string path, const Json& body) {
    return send(request("POST", std::move(path), body));
  }
  std::shared_ptr<Received> get(std::string path) { return send(request("GET", std::move(path))); }

  // One turn of the thread and one token of every answer, once all bodies have been read.
  void turn() {
    while (service_->workers.pending() > 0) std::this_thread::yield();
    thread_.turn();
    std::vector<Event> events = engine_.poll(Engine::Milliseconds(1));
    handler_->take(std::move(events));
    handler_->tick();
  }
  // Until `done`, at most ten seconds.
  template <typename Done>
  bool turn_until(const Done& done) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(10));
    while (!done()) {
      if (deadline.expired()) return false;
      turn();
    }
    return true;
  }
  void finish(const std::shared_ptr<Received>& received) {
    EXPECT_TRUE(turn_until([&] { return received->ended && service_->answers == 0; }));
  }
  // The client of this answer leaves.
  void close(const std::shared_ptr<Received>& received, HttpClose reason) {
    received->ended = true;
    received->closed(reason);
  }
  std::shared_ptr<Received> ask(std::string path, const Json& body) {
    auto received = post(std::move(path), body);
    finish(received);
    return received;
  }
  RequestRecord last_record() const {
    const auto records = service_->traces.recent(1);
    return records.empty() ? RequestRecord{} : records.front();
  }

  Service& service() { return *service_; }
  ServiceHandler& handler() { return *handler_; }
  ScriptedEngine& engine() { return engine_; }
  ManualThread& thread() { return thread_; }

 private:
  ScriptedEngine engine_;
  std::unique_ptr<Service> service_;
  ManualThread thread_;
  std::unique_ptr<ServiceHandler> handler_;
};

}  // namespace tidemill
