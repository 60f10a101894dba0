// HTTP/1.1 as handlers see it, without sockets and without a library's types.
//
// One thread owns a connection and all that happens on it, from accept to the last byte: handlers
// are called on it and need no locks. Work from other threads comes in by HttpThread::post().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace tidemill {

struct HttpHeader {
  std::string name;
  std::string value;
};

struct HttpHead {
  std::string method;  // "GET"; of a HEAD request too, whose answer the server sends without body
  std::string path;    // as sent, up to "?"; begins with "/"
  std::string query;   // behind "?"; "": none
  std::vector<HttpHeader> headers;
  std::string peer;  // "127.0.0.1:51234", for the log
  // When the request began to arrive; of the first one on a connection: its accept.
  Clock::time_point arrived;

  // The value of the first header of this name, in any case; "": none.
  std::string_view header(std::string_view name) const;
};

struct HttpRequest : HttpHead {
  std::string body;  // whole, within the server's limits
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<HttpHeader> headers;  // besides Content-Type, Content-Length, Connection, Date
  std::string body;
};

// Why an answer ended before its time. A client that closes only its sending side counts as gone.
enum class HttpClose : uint8_t {
  kClientGone,  // FIN, RST or a failed write
  kSlowReader,  // HttpLimits::buffer bytes wait, or nothing was taken for write_timeout
  kShutdown,    // the server stops
  kFailed,      // the handler threw
};
std::string_view to_string(HttpClose reason);

// The way back to the client of one request: send(), or begin(), write()* and end(). Nothing
// blocks: bytes wait in a buffer of the connection. After a close all calls are without effect.
// May be kept and released by its connection's thread only.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  virtual void send(HttpResponse response) = 0;
  // A body without a known length; head.body are its first bytes. What is written in one turn of
  // the thread is sent together.
  virtual void begin(HttpResponse head) = 0;
  virtual void write(std::string_view bytes) = 0;
  virtual void end() = 0;

  virtual bool is_open() const = 0;
  // Bytes that the connection has not taken yet.
  virtual size_t buffered() const = 0;
  // Called at most once, in a turn of its own (never inside a call above), if the answer has not
  // ended by then. The reply lets go of `closed` when it ends.
  virtual void on_close(std::function<void(HttpClose)> closed) = 0;
};

// What a server does with requests. One for each thread of the server.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Before the body is read, and before "100 Continue". A response refuses the request: a body that
  // follows is not read and the connection closes; without a body the connection is kept.
  virtual std::optional<HttpResponse> refuse(const HttpHead& head) = 0;
  // The answer may come now or later. A reply that is let go of without an answer is one of 500, so
  // is an exception; after begin() both cut the connection.
  virtual void handle(HttpRequest request, std::shared_ptr<HttpReply> reply) = 0;
  // The body of a response that the server itself makes (400, 408, 413, 417, 431, 500, 503).
  // `head`: of the request, if it was read; otherwise null.
  virtual std::string error_body(int status, const std::string& message, const HttpHead* head) = 0;
  // About every kHttpTick, for timeouts and keep-alive.
  virtual void tick() = 0;
};

inline constexpr std::chrono::milliseconds kHttpTick{100};

// One thread of the server.
class HttpThread {
 public:
  virtual ~HttpThread() = default;
  virtual int index() const = 0;  // from 0
  // Runs `work` on this thread, soon and in order. From any thread, until ~HttpServer returns. Work
  // that is left when the server ends is dropped. An exception of `work` is logged.
  virtual void post(std::function<void()> work) = 0;
};

}  // namespace tidemill
