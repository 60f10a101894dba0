#include "serve/server.h"

#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "serve/service/event_pump.h"
#include "serve/service/service_handler.h"

namespace tidemill {
namespace {

constexpr std::chrono::milliseconds kLook{5};
// For the last bytes of answers that were cut off, and the engine's last events of them.
constexpr std::chrono::seconds kLastWords{2};

}  // namespace

class Server::Impl {
 public:
  static Result<std::unique_ptr<Impl>> start(ServerOptions options, KeyRing keys,
                                             ServedEngine& engine, const Tokenizer& tokenizer) {
    auto impl = std::make_unique<Impl>();
    TRY(impl->service_,
        Service::create(std::move(options.service), std::move(keys), engine, tokenizer));
    const int threads = options.http.threads;
    std::vector<EventPump::Deliver> deliver;
    TRY(impl->http_, HttpServer::start(options.http, [&](HttpThread& thread) {
          auto handler = std::make_unique<ServiceHandler>(*impl->service_, thread, threads);
          ServiceHandler* raw = handler.get();
          impl->threads_.push_back({&thread, raw});
          deliver.push_back([&thread, raw](std::vector<Event> events, std::function<void()> taken) {
            auto shared = std::make_shared<std::vector<Event>>(std::move(events));
            thread.post([raw, shared, taken = std::move(taken)] {
              taken();  // this thread is at work on them: more may be posted behind
              raw->take(std::move(*shared));
            });
          });
          return handler;
        }));
    impl->port_ = impl->http_->port();
    impl->service_->http = impl->http_.get();
    impl->pump_ = std::make_unique<EventPump>(engine, std::move(deliver));
    return impl;
  }

  ~Impl() { stop(Deadline::after(std::chrono::nanoseconds(0))); }

  uint16_t port() const { return port_; }
  Service& service() { return *service_; }

  int64_t stop(Deadline deadline) {
    if (stopped_ || !http_) return 0;
    stopped_ = true;
    service_->draining = true;
    wait_for_answers(deadline);
    const int64_t left = service_->answers;
    if (left > 0) {
      log_warning("serve: {} answers had not ended by the deadline and are cut off", left);
      for (const auto& [thread, handler] : threads_) {
        thread->post([raw = handler] { raw->abort_all(draining_error(), "shutdown"); });
      }
    }
    const Deadline last = Deadline::after(kLastWords);
    wait_for_answers(last);
    http_->stop(last);
    // Threads that use the sockets' threads end before them.
    service_->workers.stop();
    pump_.reset();
    service_->http = nullptr;
    http_.reset();
    return left;
  }

 private:
  void wait_for_answers(Deadline deadline) const {
    while (service_->answers > 0 && !deadline.expired()) std::this_thread::sleep_for(kLook);
  }

  struct Thread {
    HttpThread* thread;
    ServiceHandler* handler;  // the HTTP server's
  };

  std::unique_ptr<Service> service_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<EventPump> pump_;
  std::vector<Thread> threads_;
  uint16_t port_ = 0;
  bool stopped_ = false;
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::start(ServerOptions options, KeyRing keys,
                                              ServedEngine& engine, const Tokenizer& tokenizer) {
  TRY(auto impl, Impl::start(std::move(options), std::move(keys), engine, tokenizer));
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

uint16_t Server::port() const { return impl_->port(); }
Service& Server::service() { return impl_->service(); }
void Server::drain() { impl_->service().draining = true; }
int64_t Server::stop(Deadline deadline) { return impl_->stop(deadline); }

}  // namespace tidemill
