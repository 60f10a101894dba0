// The sockets: HTTP/1.1 with keep-alive, with or without TLS, on Boost.Asio coroutines and Beast's
// parser (which stay in the .cpp files of this folder).
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "serve/http/http.h"

namespace tidemill {

// What a client can make the server hold or wait for.
struct HttpLimits {
  int64_t connections = 8192;           // more are answered 503 and closed
  int64_t header = int64_t{32} << 10;   // bytes of the request line and all headers: 431
  int64_t body = int64_t{32} << 20;     // bytes: 413
  int64_t bodies = int64_t{256} << 20;  // bytes of all bodies being read: 503
  // Bytes of a streamed answer that wait to be sent when a further turn writes: more are a slow
  // reader. What one turn writes is not cut, however much.
  int64_t buffer = int64_t{1} << 20;
  std::chrono::milliseconds header_timeout{10000};  // for a whole head, from its first byte: 408
  std::chrono::milliseconds body_timeout{30000};    // without a byte of the body: 408
  // Bytes per second of a body on average, beyond body_timeout: 408. Else a byte now and then
  // would hold a connection and its share of `bodies` for ever.
  int64_t body_rate = 4096;
  std::chrono::milliseconds idle_timeout{75000};   // of a connection between requests
  std::chrono::milliseconds write_timeout{30000};  // without a byte taken
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";  // an address or a name (its first address that can be bound)
  uint16_t port = 8000;            // 0: the system chooses
  int threads = 1;
  HttpLimits limits;
  std::filesystem::path tls_certificate;  // PEM chain; with tls_key: HTTPS only
  std::filesystem::path tls_key;
};

struct HttpStats {
  int64_t connections = 0;  // open
  int64_t accepted = 0;     // since the start
  int64_t body_bytes = 0;   // that have come, until handle() has returned
  int64_t refused = 0;      // answered by the server itself
};

class HttpServer {
 public:
  using MakeHandler = std::function<std::unique_ptr<HttpHandler>(HttpThread&)>;

  // Listens. The handlers, one for each thread, are made before the first connection, by the
  // calling thread; each is destroyed by its own thread, after the last connection. Errors:
  // kInvalidArgument (address, port, TLS files; with the reason and what to change).
  static Result<std::unique_ptr<HttpServer>> start(const HttpServerOptions& options,
                                                   const MakeHandler& make);
  // As stop() without waiting. Not from a thread of the server.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;
  HttpStats stats() const;  // any thread

  // Takes no more connections, closes those between requests, sends "Connection: close" with all
  // answers from now on and waits for answers that are being made. What is left at the deadline is
  // closed (HttpClose::kShutdown). Returns how many were. A request counts once its head is whole.
  // Not from a thread of the server.
  int64_t stop(Deadline deadline);

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidemill
