#include "serve/http/connection.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/log.h"
#include "serve/http/http_text.h"
#include "serve/http/reply.h"
#include "serve/http/server_thread.h"

namespace tidemill {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr size_t kHeadRead = 4096;
constexpr size_t kBodyRead = size_t{64} << 10;
// Bodies of whole answers beyond this are not copied behind their head.
constexpr size_t kLargeBody = size_t{16} << 10;
// Buffers beyond this are given back between answers.
constexpr size_t kKeptBuffer = size_t{16} << 10;
// After a refusal the client may still be sending; closing then would reset the connection, and the
// client might not see the answer. What it sends is dropped up to these limits.
constexpr size_t kLingerBytes = size_t{64} << 20;
constexpr std::chrono::seconds kLinger{1};

}  // namespace

Connection::Connection(ServerThread& thread, tcp::socket socket)
    : thread_(thread), socket_(std::move(socket)), arrived_(Clock::now()) {
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.non_blocking(true, ignored);
  const tcp::endpoint peer = socket_.remote_endpoint(ignored);
  const std::string address = peer.address().to_string(ignored);
  peer_ = peer.address().is_v6() ? fmt::format("[{}]:{}", address, peer.port())
                                 : fmt::format("{}:{}", address, peer.port());
  if (auto& tls = thread.server().tls) {
    tls_ = std::make_unique<asio::ssl::stream<tcp::socket&>>(socket_, *tls);
  }
}

Connection::~Connection() {
  if (reply_) std::exchange(reply_, nullptr)->ended();
}

const HttpLimits& Connection::limits() const { return thread_.server().options.limits; }

void Connection::start() {
  asio::co_spawn(thread_.io(), serve(shared_from_this()), asio::detached);
}

// --- reading

asio::awaitable<void> Connection::serve(std::shared_ptr<Connection>) {
  try {
    bool open = true;
    if (tls_) open = co_await handshake();
    while (open) open = co_await exchange();
    if (!closed_) co_await linger();
  } catch (const std::exception& e) {
    log_error("http: {}: {}", peer_, e.what());
    close(HttpClose::kFailed);
  }
  close(HttpClose::kClientGone);
  thread_.remove(*this);
}

Connection::Awaited Connection::handshake() {
  set_read_limit(Clock::now() + limits().header_timeout);
  error_code error;
  co_await tls_->async_handshake(asio::ssl::stream_base::server,
                                 asio::redirect_error(asio::use_awaitable, error));
  if (error) {
    log_debug("http: TLS handshake with {}: {}", peer_, error.message());
    close(HttpClose::kClientGone);
  }
  co_return !closed_;
}

Connection::Awaited Connection::exchange() {
  {
    RequestReader reader(limits().header, limits().body);
    bool read = co_await read_head(reader);
    if (read && reader.stage() == RequestReader::Stage::kBody) read = co_await read_body(reader);
    if (closed_) co_return false;
    head_ = nullptr;
    // Else an answer is on its way already, or nothing is owed.
    if (read) hand_over(std::move(reader.request()));
  }
  const bool sent = co_await answered();
  co_return sent&& keep_alive_ && !thread_.draining();
}

// True: to be handled, or its body to be read.
Connection::Awaited Connection::read_head(RequestReader& reader) {
  set_read_limit(Clock::now() + (input_.empty() ? limits().idle_timeout : limits().header_timeout));
  keep_alive_ = true;
  head_only_ = http_1_0_ = false;
  head_begun_ = !input_.empty();
  for (;;) {
    while (feed(reader) && reader.stage() == RequestReader::Stage::kHead) {
    }
    if (reader.stage() == RequestReader::Stage::kRefused) {
      refuse(reader.status(), reader.message());
      co_return false;
    }
    if (reader.stage() != RequestReader::Stage::kHead) break;
    const bool filled = co_await fill(kHeadRead);
    if (!filled) {
      if (expired_ && head_begun_) {
        refuse(408, fmt::format("the head of the request was not whole within {} ms",
                                limits().header_timeout.count()));
      }
      keep_alive_ = false;
      co_return false;
    }
    if (!std::exchange(head_begun_, true)) {
      set_read_limit(Clock::now() + limits().header_timeout);
    }
  }
  set_read_limit(Clock::time_point::max());
  first_ = false;
  has_request_ = true;
  thread_.server().begin_request();
  HttpRequest& request = reader.request();
  head_ = &request;
  request.peer = peer_;
  request.arrived = arrived_;
  head_only_ = reader.is_head();
  http_1_0_ = reader.is_http_1_0();
  keep_alive_ = reader.keep_alive();

  std::optional<HttpResponse> refusal;
  const bool decided =
      run_guarded("refuse", [&] { refusal = thread_.handler().refuse(std::as_const(request)); });
  if (decided && !refusal) co_return true;
  if (reader.stage() == RequestReader::Stage::kBody) keep_alive_ = false;
  if (!decided)
    refusal = HttpResponse{.status = 500, .body = thread_.error_body(500, "internal error", head_)};
  answer_ = Answer::kOwed;
  send(std::move(*refusal));
  co_return false;
}

Connection::Awaited Connection::read_body(RequestReader& reader) {
  if (!reserve_body(reader)) co_return false;
  if (reader.expects_continue() && input_.empty()) {
    pending_ += "HTTP/1.1 100 Continue\r\n\r\n";
    flush();
  }
  const Clock::time_point begun = Clock::now();
  const std::string& body = reader.request().body;
  while (reader.stage() == RequestReader::Stage::kBody) {
    const auto earned =
        std::chrono::seconds(static_cast<int64_t>(body.size()) / limits().body_rate);
    set_read_limit(std::min(Clock::now(), begun + earned) + limits().body_timeout);
    if (!feed(reader) && reader.stage() == RequestReader::Stage::kBody) {
      const bool filled = co_await fill(kBodyRead);
      if (filled) continue;
      if (expired_) {
        refuse(408, fmt::format("the body of the request came too slowly: {} bytes in {:.1f} s",
                                body.size(), seconds_since(begun)));
      }
      co_return false;
    }
    if (reader.stage() == RequestReader::Stage::kRefused) {
      refuse(reader.status(), reader.message());
      co_return false;
    }
    if (!reserve_body(reader)) co_return false;
  }
  set_read_limit(Clock::time_point::max());
  co_return true;
}

// Gives the reader what has been read. False: it took nothing.
bool Connection::feed(RequestReader& reader) {
  size_t taken = 0;
  if (!input_.empty()) taken = reader.read(input_);
  input_.erase(0, taken);
  return taken > 0;
}

// Only what has come: what is announced takes no memory, and anyone can announce.
bool Connection::reserve_body(RequestReader& reader) {
  const auto size = static_cast<int64_t>(reader.request().body.size());
  const int64_t more = size - body_reserved_;
  if (more <= 0) return true;
  if (thread_.server().reserve_body(more)) {
    body_reserved_ = size;
    return true;
  }
  refuse(503, "the bodies of other requests fill the memory for them; try again in 1 s");
  return false;
}

void Connection::release_body() {
  if (body_reserved_ > 0) thread_.server().release_body(std::exchange(body_reserved_, 0));
}

void Connection::hand_over(HttpRequest request) {
  auto reply = std::make_shared<Reply>(*this);
  reply_ = reply.get();
  answer_ = Answer::kOwed;
  handing_over_ = true;
  const bool handled = run_guarded(
      "handle", [&] { thread_.handler().handle(std::move(request), std::move(reply)); });
  handing_over_ = false;
  if (!handled) answer_failed();
  release_body();
  flush();
}

Connection::Awaited Connection::answered() {
  while (!is_answered() && !closed_) {
    if (static_cast<int64_t>(input_.size()) >= limits().header) {
      co_await pause();
      continue;
    }
    // A connection that waits for long holds no buffer.
    if (input_.empty()) std::string().swap(input_);
    error_code error;
    wakeable_ = true;
    co_await socket_.async_wait(tcp::socket::wait_read,
                                asio::redirect_error(asio::use_awaitable, error));
    wakeable_ = false;
    if (is_answered() || closed_ || error == asio::error::operation_aborted) continue;
    const bool filled = co_await fill(kHeadRead);
    if (!filled) close(HttpClose::kClientGone);
  }
  end_request();
  co_return !closed_;
}

// Reads what there is, at least one byte unless woken. False: closed, the client is gone, or
// expired_.
Connection::Awaited Connection::fill(size_t size) {
  const size_t old = input_.size();
  input_.resize(old + size);
  error_code error;
  size_t bytes = 0;
  if (tls_) {
    bytes = co_await tls_->async_read_some(asio::buffer(input_.data() + old, size),
                                           asio::redirect_error(asio::use_awaitable, error));
  } else {
    wakeable_ = true;
    bytes = co_await socket_.async_read_some(asio::buffer(input_.data() + old, size),
                                             asio::redirect_error(asio::use_awaitable, error));
    wakeable_ = false;
  }
  input_.resize(old + bytes);
  if (closed_ || expired_) co_return false;
  if (error == asio::error::operation_aborted) co_return true;
  if (error) {
    close(HttpClose::kClientGone);
    co_return false;
  }
  if (old == 0 && !first_) arrived_ = Clock::now();
  co_return true;
}

// Until woken, without reading: a client that sends more and more requests ahead has to wait.
// check() looks whether it is there.
asio::awaitable<void> Connection::pause() {
  pause_ = std::make_unique<asio::steady_timer>(thread_.io(), Clock::time_point::max());
  error_code ignored;
  co_await pause_->async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  pause_.reset();
}

asio::awaitable<void> Connection::linger() {
  lingering_ = true;
  set_read_limit(Clock::now() + kLinger);
  std::string().swap(input_);
  error_code error;
  if (tls_) co_await tls_->async_shutdown(asio::redirect_error(asio::use_awaitable, error));
  socket_.shutdown(tcp::socket::shutdown_send, error);
  input_.resize(kHeadRead);
  size_t dropped = 0;
  while (!error && !expired_ && dropped < kLingerBytes) {
    if (dropped > kHeadRead) input_.resize(kBodyRead);
    dropped += co_await socket_.async_read_some(asio::buffer(input_),
                                                asio::redirect_error(asio::use_awaitable, error));
  }
}

void Connection::set_read_limit(Clock::time_point time) {
  read_limit_ = time;
  expired_ = false;
}

// serve() waits for something that has happened.
void Connection::wake() {
  error_code ignored;
  if (wakeable_) socket_.cancel(ignored);
  if (pause_) pause_->cancel();
}

void Connection::check(Clock::time_point now) {
  if (closed_) return;
  if (now >= write_limit_) return close(HttpClose::kSlowReader);
  if (now >= read_limit_) {
    expired_ = true;
    read_limit_ = now;  // again, should the operation have gone on
    error_code ignored;
    socket_.cancel(ignored);
  }
  if (pause_) {
    pollfd poll_client{.fd = socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
    if (poll(&poll_client, 1, 0) > 0) close(HttpClose::kClientGone);
  }
}

// --- answering

void Connection::refuse(int status, const std::string& message) {
  thread_.server().refused.fetch_add(1);
  set_read_limit(Clock::time_point::max());
  keep_alive_ = false;
  HttpResponse response{.status = status, .body = thread_.error_body(status, message, head_)};
  if (status == 503) response.headers.push_back({"Retry-After", "1"});
  answer_ = Answer::kOwed;
  send(std::move(response));
  release_body();
}

void Connection::send(HttpResponse response) {
  if (answer_ != Answer::kOwed) return;
  append_head(response, true);
  const bool bodiless = head_only_ || response.status == 204 || response.status == 304;
  if (bodiless) {
  } else if (response.body.size() <= kLargeBody) {
    pending_ += response.body;
  } else {
    large_ = std::move(response.body);
  }
  finish_answer();
}

void Connection::begin(HttpResponse head) {
  if (answer_ != Answer::kOwed) return;
  chunked_ = !http_1_0_;
  if (http_1_0_) keep_alive_ = false;
  append_head(head, false);
  answer_ = Answer::kStreaming;
  largest_turn_ = 0;
  flush_later();
  write(head.body);
}

void Connection::append_head(const HttpResponse& response, bool whole) {
  if (thread_.draining()) keep_alive_ = false;
  const HttpFraming framing = whole      ? HttpFraming::kLength
                              : chunked_ ? HttpFraming::kChunked
                                         : HttpFraming::kUntilClose;
  const HttpAfter after = !keep_alive_ ? HttpAfter::kClose
                          : http_1_0_  ? HttpAfter::kKeepAlive
                                       : HttpAfter::kKeep;
  append_response_head(pending_, response, framing, after, thread_.date_line());
}

void Connection::write(std::string_view bytes) {
  if (answer_ != Answer::kStreaming || head_only_ || bytes.empty()) return;
  // In the first write of a turn, all that waits was left by the socket in earlier turns. What one
  // turn writes is not the reader's fault, however much it is.
  const size_t most = static_cast<size_t>(limits().buffer) + largest_turn_;
  if (!flush_due_ && buffered() > most) return close(HttpClose::kSlowReader);
  turn_ += bytes.size();
  try {
    if (chunked_) {
      append_chunk(pending_, bytes);
    } else {
      pending_ += bytes;
    }
  } catch (const std::bad_alloc&) {
    // A part of it may be there: the client must not read on.
    return close(HttpClose::kFailed);
  }
  flush_later();
}

void Connection::end() {
  if (answer_ != Answer::kStreaming) return;
  if (chunked_ && !head_only_) pending_ += kLastChunk;
  finish_answer();
}

void Connection::finish_answer() {
  answer_ = Answer::kNone;
  // A read through TLS cannot be woken; it may wait for the rest of a record that never comes.
  if (tls_) set_read_limit(Clock::now() + limits().idle_timeout);
  flush_later();
  if (reply_) std::exchange(reply_, nullptr)->ended();
}

// The reply goes; it has not ended the answer.
void Connection::abandon() {
  reply_ = nullptr;
  if (answer_ == Answer::kStreaming) return close(HttpClose::kFailed);
  run_guarded("an answer of 500", [this] {
    send({.status = 500, .body = thread_.error_body(500, "the request was not answered", head_)});
  });
}

// The handler threw. Whatever it began for the request is to hear of it.
void Connection::answer_failed() {
  if (answer_ == Answer::kNone) return;
  if (answer_ == Answer::kStreaming) return close(HttpClose::kFailed);
  if (reply_) std::exchange(reply_, nullptr)->closed(HttpClose::kFailed);
  send({.status = 500, .body = thread_.error_body(500, "internal error", head_)});
}

void Connection::end_request() {
  if (!std::exchange(has_request_, false)) return;
  thread_.server().end_request();
}

// --- writing

size_t Connection::buffered() const {
  return writing_.size() - sent_ + pending_.size() + large_.size();
}

void Connection::flush_later() {
  if (flush_due_) return;
  flush_due_ = true;
  if (!handing_over_) thread_.flush_later(shared_from_this());
}

void Connection::flush() {
  flush_due_ = false;
  largest_turn_ = std::max(largest_turn_, std::exchange(turn_, 0));
  if (closed_ || write_in_flight_ || buffered() == 0) return;
  write_limit_ = Clock::now() + limits().write_timeout;
  if (!tls_) {
    // Most answers fit into the socket's buffer: no need to wait for that.
    took(0);
    error_code error;
    const size_t bytes = socket_.write_some(asio::buffer(writing_) + sent_, error);
    if (error && error != asio::error::would_block) return close(HttpClose::kClientGone);
    took(bytes);
  }
  write_some();
}

void Connection::write_some() {
  took(0);
  if (buffered() == 0) {
    write_limit_ = Clock::time_point::max();
    if (is_answered()) wake();
    return;
  }
  write_in_flight_ = true;
  const asio::const_buffer rest = asio::buffer(writing_) + sent_;
  auto done = [self = shared_from_this()](const error_code& error, size_t bytes) {
    self->written(error, bytes);
  };
  if (tls_) {
    tls_->async_write_some(rest, std::move(done));
  } else {
    socket_.async_write_some(rest, std::move(done));
  }
}

void Connection::written(const error_code& error, size_t bytes) {
  write_in_flight_ = false;
  if (closed_) return;
  // A plain write that was cancelled with a read goes on.
  if (error && (tls_ || error != asio::error::operation_aborted)) {
    return close(HttpClose::kClientGone);
  }
  if (bytes > 0) write_limit_ = Clock::now() + limits().write_timeout;
  took(bytes);
  write_some();
}

// The socket took bytes of writing_; what is next moves up.
void Connection::took(size_t bytes) {
  sent_ += bytes;
  if (sent_ < writing_.size()) return;
  sent_ = 0;
  writing_.clear();
  if (writing_.capacity() > kKeptBuffer) std::string().swap(writing_);
  writing_.swap(pending_);
  if (writing_.empty()) writing_.swap(large_);
}

// --- closing

void Connection::close_if_idle() {
  error_code error;
  if (has_request_ || lingering_ || head_begun_ || socket_.available(error) > 0) return;
  close(HttpClose::kShutdown);
}

void Connection::close(HttpClose reason) {
  if (std::exchange(closed_, true)) return;
  error_code ignored;
  if (reason == HttpClose::kSlowReader) {
    log_info("http: {} reads too slowly: {} bytes wait; closed", peer_, buffered());
    // The system would keep what it has for the client.
    socket_.set_option(asio::socket_base::linger(true, 0), ignored);
  }
  socket_.close(ignored);
  if (pause_) pause_->cancel();
  answer_ = Answer::kNone;
  std::string().swap(pending_);
  std::string().swap(large_);
  release_body();
  end_request();
  if (reply_) std::exchange(reply_, nullptr)->closed(reason);
}

}  // namespace tidemill
