// One connection of a client: reads its requests one after the other, hands them to the handler of
// its thread and sends the answers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/clock.h"
#include "serve/http/http.h"
#include "serve/http/http_server.h"
#include "serve/http/request_reader.h"

namespace tidemill {

class Reply;
class ServerThread;

// Reading is a coroutine, serve(), which holds the connection. While an answer is being made it
// waits for the client, so that one that goes is seen at once. Writing is beside it: answers append
// to `pending_`, and flush() sends as much as the socket takes.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(ServerThread& thread, boost::asio::ip::tcp::socket socket);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void start();
  void close(HttpClose reason);
  void close_if_idle();
  // From the thread's tick: time limits, and the client where nothing is read.
  void check(Clock::time_point now);
  // A request whose head is whole and whose answer is not sent.
  bool has_request() const { return has_request_; }
  // All is sent; the client has a moment to hear it.
  bool is_lingering() const { return lingering_; }
  void flush();

  ServerThread& thread() { return thread_; }
  // In the thread's list.
  size_t position() const { return position_; }
  void set_position(size_t position) { position_ = position; }

  // By the reply.
  void send(HttpResponse response);
  void begin(HttpResponse head);
  void write(std::string_view bytes);
  void end();
  void abandon();
  size_t buffered() const;

 private:
  using Awaited = boost::asio::awaitable<bool>;
  enum class Answer : uint8_t { kNone, kOwed, kStreaming };

  boost::asio::awaitable<void> serve(std::shared_ptr<Connection> self);
  Awaited handshake();
  // One request and its answer. False: the connection is to end.
  Awaited exchange();
  Awaited read_head(RequestReader& reader);
  Awaited read_body(RequestReader& reader);
  // Until the answer is sent. False: the connection is closed.
  Awaited answered();
  Awaited fill(size_t size);
  boost::asio::awaitable<void> pause();
  boost::asio::awaitable<void> linger();

  bool feed(RequestReader& reader);
  bool reserve_body(RequestReader& reader);
  void release_body();
  void hand_over(HttpRequest request);
  // The server's own answer; the connection is to end.
  void refuse(int status, const std::string& message);
  void answer_failed();
  void append_head(const HttpResponse& response, bool whole);
  void finish_answer();
  void end_request();
  bool is_answered() const { return answer_ == Answer::kNone && buffered() == 0; }

  void flush_later();
  void write_some();
  void written(const boost::system::error_code& error, size_t bytes);
  void took(size_t bytes);
  void set_read_limit(Clock::time_point time);
  void wake();
  const HttpLimits& limits() const;

  ServerThread& thread_;
  boost::asio::ip::tcp::socket socket_;
  std::unique_ptr<boost::asio::ssl::stream<boost::asio::ip::tcp::socket&>> tls_;  // null: plain
  size_t position_ = 0;
  std::string peer_;

  std::string input_;  // read and not parsed; during a read, also the room for it
  Clock::time_point arrived_;
  Clock::time_point read_limit_ = Clock::time_point::max();
  std::unique_ptr<boost::asio::steady_timer> pause_;  // while more input is not wanted
  int64_t body_reserved_ = 0;

  Reply* reply_ = nullptr;
  std::string writing_;  // the first sent_ bytes are with the socket
  size_t sent_ = 0;
  std::string pending_;  // after writing_
  std::string large_;    // after pending_: the body of a whole answer, not copied
  Clock::time_point write_limit_ = Clock::time_point::max();
  size_t turn_ = 0;          // bytes that the answer has written in this turn
  size_t largest_turn_ = 0;  // of the answer

  Answer answer_ = Answer::kNone;
  bool first_ = true;        // no request yet
  bool head_begun_ = false;  // the head of the request to come
  bool expired_ = false;
  bool wakeable_ = false;  // a pending read may be cancelled
  bool lingering_ = false;
  bool closed_ = false;
  bool has_request_ = false;
  bool write_in_flight_ = false;
  bool flush_due_ = false;  // at the end of this turn
  bool handing_over_ = false;
  // Of the current request.
  const HttpHead* head_ = nullptr;  // once it is whole, until it is handed over
  bool head_only_ = false;
  bool http_1_0_ = false;
  bool keep_alive_ = true;
  bool chunked_ = false;
};

}  // namespace tidemill
