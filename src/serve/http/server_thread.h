// One thread of the server: an io_context, its connections, its handler.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/log.h"
#include "serve/http/http.h"
#include "serve/http/server_state.h"

namespace tidemill {

class Connection;

// Runs code of a handler: false, and a line in the log, if it throws.
template <typename Work>
bool run_guarded(const char* what, Work&& work) {
  try {
    work();
    return true;
  } catch (const std::exception& e) {
    log_error("http: {} threw: {}", what, e.what());
  } catch (...) {
    log_error("http: {} threw", what);
  }
  return false;
}

// Calls marked (any) come from any thread, all others on the thread that run() is on.
class ServerThread final : public HttpThread {
 public:
  ServerThread(int index, ServerState& server);
  ~ServerThread() override;

  int index() const override { return index_; }    // (any)
  void post(std::function<void()> work) override;  // (any)
  boost::asio::io_context& io() { return io_; }    // (any)
  int64_t load() const { return load_.load(); }    // (any) connections
  void add_load() { load_.fetch_add(1); }          // (any) one that adopt() will take over

  ServerState& server() { return server_; }
  HttpHandler& handler() { return *handler_; }
  void set_handler(std::unique_ptr<HttpHandler> handler) { handler_ = std::move(handler); }
  const std::string& date_line() const { return date_line_; }

  // Until finish() and the end of the last connection; the handler is gone then.
  void run();
  // Takes over a connection that add_load() has counted; `client` belongs to io().
  void adopt(boost::asio::ip::tcp::socket client);
  // The body of a response that the server makes; empty if the handler throws.
  std::string error_body(int status, const std::string& message, const HttpHead* head);
  // Closes connections between requests, now and after each answer from now on.
  void drain();
  bool draining() const { return draining_; }
  // Closes all; returns how many requests had no whole answer.
  int64_t close_all();
  void finish();

  void remove(Connection& connection);
  // Connection::flush() at the end of this turn.
  void flush_later(std::shared_ptr<Connection> connection);

 private:
  void run_posted();
  void flush_all();
  void tick();

  const int index_;
  ServerState& server_;
  boost::asio::io_context io_;
  boost::asio::steady_timer timer_;
  std::unique_ptr<HttpHandler> handler_;
  std::string date_line_;
  std::atomic<int64_t> load_ = 0;
  std::vector<Connection*> connections_;
  std::vector<std::shared_ptr<Connection>> to_flush_;
  bool draining_ = false;
  bool finishing_ = false;

  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
  bool ended_ = false;
};

}  // namespace tidemill
