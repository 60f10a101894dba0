// What the server does with HTTP requests: finds the route, checks who asks, answers at once or
// starts an exchange. One for each thread of the server.
//
// Paths of the protocols are known with "/v1" and without, and behind "/beta" and "/anthropic",
// where clients of the hosted API look for them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "serve/http/http.h"
#include "serve/service/exchange.h"
#include "serve/service/service.h"

namespace tidemill {

struct Route;  // routes.h

class ServiceHandler : public HttpHandler {
 public:
  // `threads`: of the server. Service and thread must outlive it.
  ServiceHandler(Service& service, HttpThread& thread, int threads);

  std::optional<HttpResponse> refuse(const HttpHead& head) override;
  void handle(HttpRequest request, std::shared_ptr<HttpReply> reply) override;
  std::string error_body(int status, const std::string& message, const HttpHead* head) override;
  void tick() override;

  // Of this thread's exchanges; on its thread.
  void take(std::vector<Event> events);
  // Ends all exchanges with the error.
  void abort_all(const HttpError& error, const std::string& reason);

 private:
  tl::expected<const ApiClient*, HttpError> admit(const Route& route, const HttpHead& head) const;
  void start_answer(const Route& route, HttpRequest request, std::shared_ptr<HttpReply> reply);
  void start_work(const Route& route, HttpRequest request, std::shared_ptr<HttpReply> reply);
  HttpResponse answer_now(const Route& route, const HttpRequest& request);
  void replay(const Route& route, const HttpRequest& request, const StoredResponse& stored,
              const Admission& admission, HttpReply& reply);
  // `record`: id, status, outcome and reason.
  void record_without_work(const Route& route, const HttpHead& head, RequestRecord record);

  struct Working {
    std::shared_ptr<HttpReply> reply;
    Quotas::Permit permit;
  };

  Service& service_;
  HttpThread& thread_;
  const uint64_t threads_;
  uint64_t next_;  // exchange
  std::unordered_map<uint64_t, std::shared_ptr<Exchange>> exchanges_;
  std::unordered_map<uint64_t, Working> working_;  // start_work()
};

}  // namespace tidemill
