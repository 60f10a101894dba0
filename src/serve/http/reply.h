// The handler's end of an answer. The connection knows it until the answer has ended or the
// connection is closed, whichever is first; from then on it does nothing.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include <boost/asio/post.hpp>

#include "serve/http/connection.h"
#include "serve/http/http.h"
#include "serve/http/server_thread.h"

namespace tidemill {

class Reply final : public HttpReply {
 public:
  explicit Reply(Connection& connection) : connection_(&connection), thread_(connection.thread()) {}
  Reply(const Reply&) = delete;
  Reply& operator=(const Reply&) = delete;
  ~Reply() override {
    if (connection_) connection_->abandon();
  }

  void send(HttpResponse response) override {
    if (connection_) connection_->send(std::move(response));
  }
  void begin(HttpResponse head) override {
    if (connection_) connection_->begin(std::move(head));
  }
  void write(std::string_view bytes) override {
    if (connection_) connection_->write(bytes);
  }
  void end() override {
    if (connection_) connection_->end();
  }
  bool is_open() const override { return connection_ != nullptr; }
  size_t buffered() const override { return connection_ ? connection_->buffered() : 0; }

  void on_close(std::function<void(HttpClose)> closed) override {
    closed_ = std::move(closed);
    if (!connection_) report();
  }

  // By the connection. Either may destroy the reply.
  void ended() {
    connection_ = nullptr;
    const std::function<void(HttpClose)> dropped = std::move(closed_);
  }
  void closed(HttpClose reason) {
    connection_ = nullptr;
    reason_ = reason;
    report();
  }

 private:
  void report() {
    std::function<void(HttpClose)> callback = std::exchange(closed_, nullptr);
    if (!callback || !reason_) return;
    boost::asio::post(thread_.io(), [callback = std::move(callback), reason = *reason_] {
      run_guarded("on_close", [&] { callback(reason); });
    });
    reason_.reset();  // once
  }

  Connection* connection_;
  ServerThread& thread_;
  std::function<void(HttpClose)> closed_;
  std::optional<HttpClose> reason_;
};

}  // namespace tidemill
