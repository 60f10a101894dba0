#include "serve/http/server_thread.h"

#include <ctime>
#include <utility>

#include <boost/asio/post.hpp>

#include "serve/http/connection.h"
#include "serve/http/http_text.h"

namespace tidemill {

namespace asio = boost::asio;

ServerThread::ServerThread(int index, ServerState& server)
    : index_(index), server_(server), io_(1), timer_(io_) {}

ServerThread::~ServerThread() = default;

void ServerThread::post(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  posted_.push_back(std::move(work));
  // One wake-up for all that is posted until it is heard.
  if (posted_.size() == 1) asio::post(io_, [this] { run_posted(); });
}

void ServerThread::run_posted() {
  std::vector<std::function<void()>> work;
  {
    const std::lock_guard lock(mutex_);
    work.swap(posted_);
  }
  for (std::function<void()>& item : work) {
    run_guarded("posted work", item);
    item = nullptr;
  }
}

void ServerThread::run() {
  tick();
  for (bool running = true; running;) {
    // Only a handler's code throws, and that is guarded: this is memory that ran out in between.
    running = !run_guarded("an operation", [this] { io_.run(); });
  }
  std::vector<std::function<void()>> dropped;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    dropped.swap(posted_);
  }
  dropped.clear();
  handler_.reset();
}

void ServerThread::adopt(asio::ip::tcp::socket client) {
  std::shared_ptr<Connection> connection;
  const bool made = run_guarded("a new connection", [&] {
    connection = std::make_shared<Connection>(*this, std::move(client));
    connections_.push_back(connection.get());
  });
  if (!made) {
    load_.fetch_sub(1);
    server_.connections.fetch_sub(1);
    return;
  }
  connection->set_position(connections_.size() - 1);
  if (!run_guarded("a new connection", [&] { connection->start(); })) remove(*connection);
  if (finishing_) connection->close(HttpClose::kShutdown);
}

void ServerThread::remove(Connection& connection) {
  Connection* last = connections_.back();
  connections_[connection.position()] = last;
  last->set_position(connection.position());
  connections_.pop_back();
  load_.fetch_sub(1);
  server_.connections.fetch_sub(1);
  if (finishing_ && connections_.empty()) asio::post(io_, [this] { io_.stop(); });
}

std::string ServerThread::error_body(int status, const std::string& message, const HttpHead* head) {
  std::string body;
  run_guarded("error_body", [&] { body = handler_->error_body(status, message, head); });
  return body;
}

void ServerThread::drain() {
  draining_ = true;
  for (Connection* connection : connections_) connection->close_if_idle();
}

int64_t ServerThread::close_all() {
  int64_t unfinished = 0;
  for (Connection* connection : connections_) {
    if (connection->has_request()) ++unfinished;
    if (finishing_ || !connection->is_lingering()) connection->close(HttpClose::kShutdown);
  }
  return unfinished;
}

void ServerThread::finish() {
  finishing_ = true;
  timer_.cancel();
  close_all();
  if (connections_.empty()) io_.stop();
}

void ServerThread::flush_later(std::shared_ptr<Connection> connection) {
  to_flush_.push_back(std::move(connection));
  if (to_flush_.size() == 1) asio::post(io_, [this] { flush_all(); });
}

void ServerThread::flush_all() {
  std::vector<std::shared_ptr<Connection>> connections;
  connections.swap(to_flush_);
  for (const std::shared_ptr<Connection>& connection : connections) connection->flush();
}

void ServerThread::tick() {
  if (finishing_) return;
  date_line_ = http_date_line(std::time(nullptr));
  const Clock::time_point now = Clock::now();
  for (Connection* connection : connections_) connection->check(now);
  run_guarded("tick", [this] { handler_->tick(); });
  timer_.expires_after(kHttpTick);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) tick();
  });
}

}  // namespace tidemill
