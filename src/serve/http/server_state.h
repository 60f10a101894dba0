// What the threads of one server share.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>

#include <boost/asio/ssl/context.hpp>

#include "base/clock.h"
#include "serve/http/http_server.h"

namespace tidemill {

struct ServerState {
  HttpServerOptions options;
  std::optional<boost::asio::ssl::context> tls;

  std::atomic<int64_t> connections = 0;
  std::atomic<int64_t> accepted = 0;
  std::atomic<int64_t> body_bytes = 0;
  std::atomic<int64_t> refused = 0;

  bool reserve_body(int64_t bytes) {
    if (body_bytes.fetch_add(bytes) + bytes <= options.limits.bodies) return true;
    body_bytes.fetch_sub(bytes);
    return false;
  }
  void release_body(int64_t bytes) { body_bytes.fetch_sub(bytes); }

  // Requests whose head is whole and whose answer is not sent.
  void begin_request() { requests_.fetch_add(1); }
  void end_request() {
    if (requests_.fetch_sub(1) != 1) return;
    const std::lock_guard lock(mutex_);
    no_requests_.notify_all();
  }
  bool wait_for_no_requests(Deadline deadline) {
    std::unique_lock lock(mutex_);
    const auto none = [this] { return requests_.load() == 0; };
    if (deadline.is_never()) {
      no_requests_.wait(lock, none);
      return true;
    }
    return no_requests_.wait_until(lock, deadline.time(), none);
  }

 private:
  std::atomic<int64_t> requests_ = 0;
  std::mutex mutex_;
  std::condition_variable no_requests_;
};

}  // namespace tidemill
