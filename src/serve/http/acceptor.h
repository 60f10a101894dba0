// The listening socket of a server. It belongs to one thread and hands each connection to the
// thread that has the fewest: streams live long, and the system's own way of sharing a port
// (SO_REUSEPORT, by a hash of addresses) would leave some threads with twice as many as others.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include "base/clock.h"
#include "base/result.h"
#include "serve/http/server_state.h"
#include "serve/http/server_thread.h"

namespace tidemill {

class Acceptor {
 public:
  // Runs on threads[0].
  Acceptor(ServerState& server, const std::vector<std::unique_ptr<ServerThread>>& threads);

  // kInvalidArgument: what host and port cannot be.
  Status listen(const std::string& host, uint16_t port);
  uint16_t port() const { return port_; }
  void start();
  // On threads[0].
  void close();

 private:
  enum class Accepted : uint8_t { kOne, kNone, kFailed };

  boost::asio::awaitable<void> accept();
  Accepted accept_one();
  ServerThread& least_loaded();
  // The answer to one connection too many: no more than a socket is kept, and that for a moment.
  void turn_away(boost::asio::ip::tcp::socket client);
  void forget_turned_away();

  struct TurnedAway {
    boost::asio::ip::tcp::socket socket;
    Clock::time_point at;
  };

  ServerState& server_;
  const std::vector<std::unique_ptr<ServerThread>>& threads_;
  boost::asio::ip::tcp::acceptor acceptor_;
  uint16_t port_ = 0;
  size_t next_ = 0;  // where to look first for the thread with the fewest
  boost::asio::steady_timer retry_;
  boost::asio::steady_timer forget_;
  std::deque<TurnedAway> turned_away_;
  Clock::time_point complain_from_;
};

}  // namespace tidemill
