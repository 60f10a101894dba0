#include "serve/http/acceptor.h"

#include <cerrno>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "serve/http/http_text.h"

namespace tidemill {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr int kBurst = 64;  // connections that are accepted before others have their turn
constexpr std::chrono::milliseconds kRetry{100};
constexpr std::chrono::seconds kComplainEvery{10};
constexpr size_t kMaxTurnedAway = 32;
constexpr std::chrono::seconds kTurnedAwayFor{1};

}  // namespace

Acceptor::Acceptor(ServerState& server, const std::vector<std::unique_ptr<ServerThread>>& threads)
    : server_(server),
      threads_(threads),
      acceptor_(threads.front()->io()),
      retry_(threads.front()->io()),
      forget_(threads.front()->io()) {}

Status Acceptor::listen(const std::string& host, uint16_t port) {
  error_code error;
  tcp::resolver resolver(threads_.front()->io());
  const auto addresses =
      resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
  if (error) {
    return fail(ErrorCode::kInvalidArgument,
                "cannot listen on host {}: {}; give an address of this machine (127.0.0.1, or "
                "0.0.0.0 for all)",
                host, error.message());
  }
  for (const auto& address : addresses) {
    const tcp::endpoint endpoint = address.endpoint();
    acceptor_.close(error);
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error && endpoint.protocol() == tcp::v6()) {
      acceptor_.set_option(asio::ip::v6_only(false), error);
    }
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (!error) acceptor_.non_blocking(true, error);
    if (!error) break;
  }
  if (!error) port_ = acceptor_.local_endpoint(error).port();
  if (error) {
    return fail(ErrorCode::kInvalidArgument,
                "cannot listen on {} port {}: {}; choose another port (0: any) or host", host, port,
                error.message());
  }
  return {};
}

void Acceptor::start() { asio::co_spawn(threads_.front()->io(), accept(), asio::detached); }

void Acceptor::close() {
  error_code ignored;
  acceptor_.close(ignored);
  retry_.cancel();
  forget_.cancel();
  turned_away_.clear();
}

asio::awaitable<void> Acceptor::accept() {
  error_code error;
  while (acceptor_.is_open()) {
    Accepted last = Accepted::kOne;
    for (int i = 0; i < kBurst && last == Accepted::kOne; ++i) {
      if (!run_guarded("accept", [&] { last = accept_one(); })) last = Accepted::kFailed;
    }
    if (last == Accepted::kFailed) {
      // The connection still waits, and so would be accepted again without an end.
      retry_.expires_after(kRetry);
      co_await retry_.async_wait(asio::redirect_error(asio::use_awaitable, error));
    } else {
      co_await acceptor_.async_wait(tcp::acceptor::wait_read,
                                    asio::redirect_error(asio::use_awaitable, error));
    }
  }
}

Acceptor::Accepted Acceptor::accept_one() {
  const bool full = server_.connections.load() >= server_.options.limits.connections;
  ServerThread& thread = full ? *threads_.front() : least_loaded();
  tcp::socket client(thread.io());
  error_code error;
  acceptor_.accept(client, error);
  if (error == asio::error::would_block || error == asio::error::bad_descriptor) {
    return Accepted::kNone;
  }
  // What happened to one client before it was accepted.
  if (error == asio::error::connection_aborted || error.value() == EPROTO) return Accepted::kOne;
  if (error) {
    if (const auto now = Clock::now(); now >= complain_from_) {
      complain_from_ = now + kComplainEvery;
      log_error("http: cannot accept connections: {} ({} are open)", error.message(),
                server_.connections.load());
    }
    return Accepted::kFailed;
  }
  server_.accepted.fetch_add(1);
  if (full) {
    turn_away(std::move(client));
    return Accepted::kOne;
  }
  asio::post(thread.io(),
             [&thread, client = std::move(client)]() mutable { thread.adopt(std::move(client)); });
  server_.connections.fetch_add(1);
  thread.add_load();
  return Accepted::kOne;
}

ServerThread& Acceptor::least_loaded() {
  const size_t first = next_++;
  ServerThread* found = threads_[first % threads_.size()].get();
  for (size_t i = 1; i < threads_.size(); ++i) {
    ServerThread* other = threads_[(first + i) % threads_.size()].get();
    if (other->load() < found->load()) found = other;
  }
  return *found;
}

void Acceptor::turn_away(tcp::socket client) {
  server_.refused.fetch_add(1);
  if (server_.tls) return;  // it takes more than a write to tell
  ServerThread& thread = *threads_.front();
  HttpResponse response{.status = 503, .headers = {{"Retry-After", "1"}}};
  response.body = thread.error_body(503,
                                    fmt::format("all {} connections are in use; try again in 1 s",
                                                server_.options.limits.connections),
                                    nullptr);
  std::string text;
  append_response_head(text, response, HttpFraming::kLength, HttpAfter::kClose, thread.date_line());
  text += response.body;
  error_code ignored;
  client.non_blocking(true, ignored);
  client.write_some(asio::buffer(text), ignored);
  // Closed at once, the connection would be reset by the request that is under way, and the client
  // might never see the answer.
  client.shutdown(tcp::socket::shutdown_send, ignored);
  turned_away_.push_back({std::move(client), Clock::now()});
  if (turned_away_.size() > kMaxTurnedAway) turned_away_.pop_front();
  if (turned_away_.size() == 1) forget_turned_away();
}

void Acceptor::forget_turned_away() {
  const Clock::time_point now = Clock::now();
  while (!turned_away_.empty() && now >= turned_away_.front().at + kTurnedAwayFor) {
    turned_away_.pop_front();
  }
  if (turned_away_.empty()) return;
  forget_.expires_at(turned_away_.front().at + kTurnedAwayFor);
  forget_.async_wait([this](const error_code& error) {
    if (!error) forget_turned_away();
  });
}

}  // namespace tidemill
