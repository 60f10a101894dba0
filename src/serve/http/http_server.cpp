#include "serve/http/http_server.h"

#include <sys/resource.h>

#include <future>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/post.hpp>

#include "base/log.h"
#include "serve/http/acceptor.h"
#include "serve/http/server_state.h"
#include "serve/http/server_thread.h"
#include "serve/http/tls_context.h"

namespace tidemill {
namespace {

// Descriptors of this process besides its connections.
constexpr int64_t kOtherDescriptors = 64;

Status check(const HttpServerOptions& options) {
  const HttpLimits& limits = options.limits;
  if (options.threads < 1) {
    return fail(ErrorCode::kInvalidArgument, "{} server threads; at least 1 is needed",
                options.threads);
  }
  const std::pair<const char*, int64_t> positive[] = {
      {"connections", limits.connections},
      {"header", limits.header},
      {"body", limits.body},
      {"bodies", limits.bodies},
      {"buffer", limits.buffer},
      {"body_rate", limits.body_rate},
      {"header_timeout", limits.header_timeout.count()},
      {"body_timeout", limits.body_timeout.count()},
      {"idle_timeout", limits.idle_timeout.count()},
      {"write_timeout", limits.write_timeout.count()}};
  for (const auto& [name, value] : positive) {
    if (value < 1) {
      return fail(ErrorCode::kInvalidArgument, "the limit {} of the HTTP server is {}; at least 1",
                  name, value);
    }
  }
  return {};
}

void raise_descriptor_limit(int64_t connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const auto needed = static_cast<rlim_t>(connections + kOtherDescriptors);
  if (limit.rlim_cur >= needed) return;
  rlimit raised = limit;
  raised.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  if (limit.rlim_cur < needed) {
    log_warning(
        "http: {} connections are allowed, but this process may have {} descriptors; raise it "
        "(ulimit -n) to {}",
        connections, limit.rlim_cur, needed);
  }
}

}  // namespace

class HttpServer::Impl {
 public:
  Status start(const HttpServerOptions& options, const MakeHandler& make) {
    CHECK_OK(check(options));
    state_.options = options;
    if (!options.tls_certificate.empty() || !options.tls_key.empty()) {
      TRY(state_.tls, make_tls_context(options.tls_certificate, options.tls_key));
    }
    raise_descriptor_limit(options.limits.connections);
    for (int i = 0; i < options.threads; ++i) {
      threads_.push_back(std::make_unique<ServerThread>(i, state_));
    }
    acceptor_.emplace(state_, threads_);
    CHECK_OK(acceptor_->listen(options.host, options.port));
    for (const auto& thread : threads_) thread->set_handler(make(*thread));
    for (const auto& thread : threads_) {
      try {
        running_.emplace_back([&thread = *thread] { thread.run(); });
      } catch (const std::system_error& e) {
        return fail(ErrorCode::kInvalidArgument, "cannot start {} server threads: {}",
                    options.threads, e.what());
      }
    }
    acceptor_->start();
    return {};
  }

  ~Impl() {
    if (!running_.empty()) on(0, [this] { acceptor_->close(); });
    for (size_t i = 0; i < running_.size(); ++i) {
      boost::asio::post(threads_[i]->io(), [&thread = *threads_[i]] { thread.finish(); });
    }
    for (std::thread& thread : running_) thread.join();
  }

  int64_t stop(Deadline deadline) {
    on(0, [this] { acceptor_->close(); });
    for (size_t i = 0; i < threads_.size(); ++i) on(i, [this, i] { threads_[i]->drain(); });
    state_.wait_for_no_requests(deadline);
    int64_t unfinished = 0;
    for (size_t i = 0; i < threads_.size(); ++i) {
      on(i, [&] { unfinished += threads_[i]->close_all(); });
    }
    return unfinished;
  }

  uint16_t port() const { return acceptor_->port(); }
  HttpStats stats() const {
    return {.connections = state_.connections.load(),
            .accepted = state_.accepted.load(),
            .body_bytes = state_.body_bytes.load(),
            .refused = state_.refused.load()};
  }

 private:
  // Runs `work` on a thread and waits for it.
  template <typename Work>
  void on(size_t thread, Work work) {
    std::promise<void> done;
    boost::asio::post(threads_[thread]->io(), [&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }

  ServerState state_;
  std::vector<std::unique_ptr<ServerThread>> threads_;
  std::optional<Acceptor> acceptor_;
  std::vector<std::thread> running_;
};

Result<std::unique_ptr<HttpServer>> HttpServer::start(const HttpServerOptions& options,
                                                      const MakeHandler& make) {
  auto impl = std::make_unique<Impl>();
  CHECK_OK(impl->start(options, make));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

uint16_t HttpServer::port() const { return impl_->port(); }
HttpStats HttpServer::stats() const { return impl_->stats(); }
int64_t HttpServer::stop(Deadline deadline) { return impl_->stop(deadline); }

}  // namespace tidemill
