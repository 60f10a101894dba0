// The one file of the command that knows Boost.
#include "cli/load/client.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <unordered_set>
#include <utility>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include "base/clock.h"
#include "cli/load/answer_reader.h"
#include "cli/load/sse_reader.h"

namespace tidemill::cli {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

constexpr milliseconds kWatchEvery{50};  // how late Ctrl-C may be seen
constexpr milliseconds kLead{10};        // from the start to the first arrival
// What may follow [DONE] before the connection is given up instead of used again.
constexpr milliseconds kTailTime{1000};
constexpr size_t kReadBytes = 8 << 10;
constexpr size_t kErrorBodyBytes = 64 << 10;
constexpr uint64_t kGetBytes = 4 << 20;

struct Connection {
  explicit Connection(asio::io_context& context) : stream(context) {}

  // Has the server neither closed it nor sent what nobody asked for?
  bool is_quiet() {
    char byte = 0;
    const ssize_t n = ::recv(stream.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return buffer.size() == 0 && n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }

  beast::tcp_stream stream;
  beast::flat_buffer buffer{64 << 10};
};

Result<tcp::resolver::results_type> resolve(asio::io_context& context, const ServerUrl& url) {
  error_code error;
  tcp::resolver resolver(context);
  auto addresses = resolver.resolve(url.host, url.port, error);
  if (error) {
    return fail(ErrorCode::kRequest, "cannot find the host {}: {}", url.host, error.message());
  }
  return addresses;
}

template <typename Body>
http::request<Body> make_request(const LoadServer& server, http::verb verb,
                                 const std::string& path) {
  http::request<Body> request(verb, server.url.base + path, 11);
  request.set(http::field::host, server.url.authority());
  request.set(http::field::user_agent, "tidemill-load");
  if (!server.api_key.empty()) {
    request.set(http::field::authorization, "Bearer " + server.api_key);
  }
  return request;
}

// An open-loop run of one thread. Coroutines refer to it; nothing outlives context_.run() but what
// an exception cuts off, and that touches only its own frame when it is destroyed.
class LoadRunner {
 public:
  explicit LoadRunner(const LoadPlan& plan) : plan_(plan) {}

  Result<LoadRun> perform() {
    TRY(addresses_, resolve(context_, plan_.server.url));
    result_.records.reserve(plan_.arrivals.size());
    start_ = Clock::now() + kLead;
    const auto rethrow = [](std::exception_ptr error) {
      if (error) std::rethrow_exception(error);
    };
    asio::co_spawn(context_, dispatch(), rethrow);
    asio::co_spawn(context_, watch(), rethrow);
    context_.run();
    return std::move(result_);
  }

 private:
  template <typename T>
  using Task = asio::awaitable<T>;

  struct Waiter {
    explicit Waiter(asio::io_context& context) : timer(context) {}
    asio::steady_timer timer;
    bool granted = false;  // a connection's place is the waiter's now
    bool gone = false;     // it stopped waiting
  };

  double now() const { return seconds_between(start_, Clock::now()); }
  Clock::time_point at(double seconds) const {
    return start_ +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  Clock::time_point deadline(const LoadRecord& record) const {
    return at(record.intended_s + plan_.timeout_s);
  }
  bool all_ended() const { return dispatched_all_ && result_.records.size() == dispatched_; }

  // ---- the arrival clock

  Task<void> dispatch() {
    asio::steady_timer timer(context_);
    dispatch_timer_ = &timer;
    for (size_t i = 0; i < plan_.arrivals.size() && !stopping_; ++i) {
      std::string body = plan_.body(i);
      // Also when it is due already: between two arrivals the open streams get their turn.
      co_await wait_until(timer, at(plan_.arrivals[i]));
      if (stopping_) break;
      ++dispatched_;
      asio::co_spawn(context_, request(i, std::move(body)), [](std::exception_ptr error) {
        if (error) std::rethrow_exception(error);
      });
    }
    dispatch_timer_ = nullptr;
    dispatched_all_ = true;
    if (all_ended()) end_watch();
  }

  Task<void> watch() {
    asio::steady_timer timer(context_);
    watch_timer_ = &timer;
    while (!all_ended()) {
      co_await wait_until(timer, Clock::now() + kWatchEvery);
      if (plan_.progress) {
        plan_.progress(static_cast<double>(result_.records.size()) /
                       static_cast<double>(plan_.arrivals.size()));
      }
      const bool cancelled = plan_.cancel != nullptr && *plan_.cancel;
      if (cancelled && !stopping_ && !all_ended()) stop();
    }
    watch_timer_ = nullptr;
  }

  void end_watch() {
    if (watch_timer_ != nullptr) watch_timer_->cancel();
  }

  // Everything that waits for something fails now and finds `stopping_`.
  void stop() {
    stopping_ = true;
    result_.interrupted = true;
    if (dispatch_timer_ != nullptr) dispatch_timer_->cancel();
    for (const auto& waiter : waiters_) waiter->timer.cancel();
    for (Connection* connection : active_) connection->stream.close();
  }

  static Task<void> wait_until(asio::steady_timer& timer, Clock::time_point time) {
    error_code ignored;
    timer.expires_at(time);
    co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }

  // ---- connections

  // A place among the plan's connections; false: none by the deadline.
  Task<bool> take_place(LoadRecord& record) {
    if (in_use_ < plan_.connections) {
      ++in_use_;
      co_return true;
    }
    record.waited = true;
    const auto waiter = std::make_shared<Waiter>(context_);
    waiters_.push_back(waiter);
    co_await wait_until(waiter->timer, deadline(record));
    waiter->gone = true;
    co_return waiter->granted;
  }

  void give_place() {
    while (!waiters_.empty()) {
      const auto waiter = std::move(waiters_.front());
      waiters_.pop_front();
      if (waiter->gone) continue;
      waiter->granted = true;
      waiter->timer.cancel();
      return;
    }
    --in_use_;
  }

  std::unique_ptr<Connection> take_idle() {
    while (!idle_.empty()) {
      auto connection = std::move(idle_.back());
      idle_.pop_back();
      if (connection->is_quiet()) return connection;
    }
    return nullptr;
  }

  // ---- one request

  Task<void> request(size_t index, std::string body) {
    LoadRecord record{.index = index, .intended_s = plan_.arrivals[index]};
    const bool has_place = co_await take_place(record);
    if (has_place && !stopping_ && Clock::now() < deadline(record)) {
      record.sent_s = now();
      auto connection = take_idle();
      const bool is_new = connection == nullptr;
      if (is_new) connection = std::make_unique<Connection>(context_);
      active_.insert(connection.get());
      connection->stream.expires_at(deadline(record));
      bool usable = true;
      if (is_new) usable = co_await connect(*connection, record);
      if (usable) usable = co_await exchange(*connection, std::move(body), record);
      active_.erase(connection.get());
      if (usable && !stopping_) idle_.push_back(std::move(connection));
    } else {
      record.end_s = now();
      if (!stopping_) set_error(record, "timeout", "no connection was free in time");
    }
    if (has_place) give_place();
    end(std::move(record));
  }

  void end(LoadRecord record) {
    result_.records.push_back(std::move(record));
    if (all_ended()) end_watch();
  }

  // Returns false, for the callers: the connection cannot be used again.
  bool broken(LoadRecord& record, std::string_view reason, error_code error,
              std::string_view doing) const {
    record.end_s = now();
    if (stopping_) {
      record.outcome = LoadOutcome::kAborted;
    } else if (error == beast::error::timeout) {
      set_error(record, "timeout",
                fmt::format("{}, {} chunks so far", doing, record.chunks_s.size()));
    } else if (error == http::error::header_limit || error == http::error::buffer_overflow ||
               error == http::error::body_limit) {
      set_error(record, "too_large", fmt::format("{}: {}", doing, error.message()));
    } else {
      const bool malformed = error.category() == http::make_error_code({}).category() &&
                             error != http::error::end_of_stream &&
                             error != http::error::partial_message;
      set_error(record, malformed ? "bad_answer" : reason,
                fmt::format("{}: {}", doing, error.message()));
    }
    return false;
  }

  Task<bool> connect(Connection& connection, LoadRecord& record) {
    error_code error;
    co_await connection.stream.async_connect(addresses_,
                                             asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return broken(record, "connect", error, "connecting");
    connection.stream.socket().set_option(tcp::no_delay(true), error);
    co_return true;
  }

  // Sends the request and reads the answer. true: the connection is ready for another.
  Task<bool> exchange(Connection& connection, std::string body, LoadRecord& record) {
    auto request = make_request<http::string_body>(plan_.server, http::verb::post, plan_.path);
    request.set(http::field::content_type, "application/json");
    request.set(http::field::accept, "text/event-stream");
    request.body() = std::move(body);
    request.prepare_payload();
    error_code sending;
    co_await http::async_write(connection.stream, request,
                               asio::redirect_error(asio::use_awaitable, sending));

    http::response_parser<http::buffer_body> parser;
    parser.header_limit(kMaxAnswerHead);
    parser.body_limit(kMaxAnswerBytes);
    error_code error;
    if (!sending || sending != beast::error::timeout) {
      // Also after a failed write: a server may refuse a body before it has read all of it.
      co_await http::async_read_header(connection.stream, connection.buffer, parser,
                                       asio::redirect_error(asio::use_awaitable, error));
    }
    if (sending && (error || sending == beast::error::timeout)) {
      co_return broken(record, "closed", sending, "sending the request");
    }
    if (error) co_return broken(record, "closed", error, "waiting for the answer");
    record.status = parser.get().result_int();
    bool usable = false;
    if (record.status != 200) {
      usable = co_await read_error(connection, parser, record);
    } else {
      usable = co_await read_stream(connection, parser, record);
    }
    co_return usable && !sending && parser.is_done() && parser.get().keep_alive();
  }

  using Parser = http::response_parser<http::buffer_body>;

  // The next bytes of the body, at least one unless it has ended: all that one read of the socket
  // brought, so that they share a time.
  static Task<void> read_some(Connection& connection, Parser& parser, std::string& body,
                              error_code& error) {
    body.clear();
    parse(connection.buffer, parser, body, error);
    while (body.empty() && !parser.is_done() && !error) {
      if (connection.buffer.size() + kReadBytes > connection.buffer.max_size()) {
        error = http::error::buffer_overflow;
        co_return;
      }
      const size_t n = co_await connection.stream.async_read_some(
          connection.buffer.prepare(kReadBytes), asio::redirect_error(asio::use_awaitable, error));
      connection.buffer.commit(n);
      if (error == asio::error::eof) {
        error = {};
        parser.put_eof(error);
        co_return;
      }
      if (!error) parse(connection.buffer, parser, body, error);
    }
  }

  static void parse(beast::flat_buffer& buffer, Parser& parser, std::string& body,
                    error_code& error) {
    char bytes[kReadBytes];
    while (buffer.size() > 0 && !parser.is_done() && !error) {
      parser.get().body().data = bytes;
      parser.get().body().size = sizeof(bytes);
      buffer.consume(parser.put(buffer.data(), error));
      body.append(bytes, sizeof(bytes) - parser.get().body().size);
      if (error == http::error::need_buffer) error = {};  // `bytes` is full
    }
    if (error == http::error::need_more) error = {};
  }

  Task<bool> read_error(Connection& connection, Parser& parser, LoadRecord& record) {
    std::string text, bytes;
    error_code error;
    while (!parser.is_done() && !error && text.size() < kErrorBodyBytes) {
      co_await read_some(connection, parser, bytes, error);
      text += bytes;
    }
    // Cut off or not: the status is what happened.
    record.end_s = now();
    if (stopping_) co_return false;
    set_error(record, "http", error_text(text));
    co_return !error;
  }

  Task<bool> read_stream(Connection& connection, Parser& parser, LoadRecord& record) {
    const auto type = parser.get()[http::field::content_type];
    if (!beast::iequals(type.substr(0, type.find(';')), "text/event-stream")) {
      record.end_s = now();
      set_error(record, "bad_answer",
                fmt::format("the answer is \"{}\", not text/event-stream", std::string(type)));
      co_return false;
    }
    SseReader events(kMaxAnswerEvent);
    AnswerReader answer(record);
    std::string bytes;
    error_code error;
    while (!parser.is_done() && !error && !answer.over()) {
      co_await read_some(connection, parser, bytes, error);
      const double read_s = now();
      const Status read =
          events.read(bytes, [&](const StreamEvent& event) { return answer.take(event, read_s); });
      record.end_s = read_s;
      if (!read) {
        set_error(record, "too_large", read.error().message);
        co_return false;
      }
    }
    if (!answer.over()) {
      if (error) co_return broken(record, "closed", error, "reading the answer");
      set_error(
          record, "no_done",
          fmt::format("the stream ended without [DONE], after {} chunks", record.chunks_s.size()));
      co_return false;
    }
    if (!record.ok()) co_return false;
    connection.stream.expires_at(std::min(deadline(record), Clock::now() + kTailTime));
    while (!parser.is_done() && !error) co_await read_some(connection, parser, bytes, error);
    co_return !error;
  }

  const LoadPlan& plan_;
  asio::io_context context_{1};
  tcp::resolver::results_type addresses_;
  Clock::time_point start_;
  LoadRun result_;
  size_t dispatched_ = 0;
  bool dispatched_all_ = false;
  bool stopping_ = false;
  asio::steady_timer* dispatch_timer_ = nullptr;
  asio::steady_timer* watch_timer_ = nullptr;

  int64_t in_use_ = 0;
  std::deque<std::shared_ptr<Waiter>> waiters_;
  std::vector<std::unique_ptr<Connection>> idle_;
  std::unordered_set<Connection*> active_;
};

// Sockets for the connections and some files.
Status raise_file_limit(int64_t connections) {
  const auto needed = static_cast<rlim_t>(connections) + 64;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return {};
  limit.rlim_cur = std::min(needed, limit.rlim_max);
  if (limit.rlim_cur < needed || ::setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return fail(ErrorCode::kNoCapacity,
                "--connections {} needs {} open files, and this process may have {} (ulimit -n)",
                connections, needed, limit.rlim_max);
  }
  return {};
}

using GetParser = http::response_parser<http::string_body>;

// `doing`: what an error interrupted.
asio::awaitable<void> get(Connection& connection, const tcp::resolver::results_type& addresses,
                          http::request<http::empty_body>& request, GetParser& parser,
                          error_code& error, std::string_view& doing) {
  doing = "cannot connect";
  co_await connection.stream.async_connect(addresses,
                                           asio::redirect_error(asio::use_awaitable, error));
  if (error) co_return;
  doing = "no answer";
  co_await http::async_write(connection.stream, request,
                             asio::redirect_error(asio::use_awaitable, error));
  if (error) co_return;
  co_await http::async_read(connection.stream, connection.buffer, parser,
                            asio::redirect_error(asio::use_awaitable, error));
}

}  // namespace

Result<LoadRun> run_load(const LoadPlan& plan) {
  CHECK_OK(raise_file_limit(plan.connections));
  return LoadRunner(plan).perform();
}

Result<std::string> http_get(const LoadServer& server, const std::string& path, double timeout_s) {
  asio::io_context context(1);
  TRY(const auto addresses, resolve(context, server.url));
  Connection connection(context);
  connection.stream.expires_after(
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_s)));
  auto request = make_request<http::empty_body>(server, http::verb::get, path);
  GetParser parser;
  parser.header_limit(kMaxAnswerHead);
  parser.body_limit(kGetBytes);
  error_code error;
  std::string_view doing;
  asio::co_spawn(context, get(connection, addresses, request, parser, error, doing),
                 [](std::exception_ptr thrown) {
                   if (thrown) std::rethrow_exception(thrown);
                 });
  context.run();
  const std::string where = fmt::format("{}{}", server.url.text(), path);
  if (error) return fail(ErrorCode::kRequest, "{}: {}: {}", where, doing, error.message());
  if (parser.get().result_int() != 200) {
    return fail(ErrorCode::kRequest, "{}: HTTP {}: {}", where, parser.get().result_int(),
                error_text(parser.get().body()));
  }
  return std::move(parser.get().body());
}

}  // namespace tidemill::cli
