// Limits of single clients, decided before any work is spent on their requests.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

#include "base/clock.h"
#include "serve/access/keys.h"
#include "serve/http_error.h"

namespace tidemill {

// Why a client may not go on now.
struct QuotaRefusal {
  HttpError error;
  std::string reason;  // for RequestRecord::reason: budget, rate, concurrency
};

// Any thread. State is kept by the client's name; clients come from a KeyRing, so there are few.
class Quotas {
 public:
  // Prompt and output tokens that a client has used so far: UsageLedger::of(client).tokens().
  // Asked only for clients with a budget, without a lock held.
  using TokensUsed = std::function<int64_t(std::string_view client)>;

  // A request in work. Its end (destruction or release()) makes room for another one; on any
  // thread, also after the Quotas are gone.
  class Permit {
   public:
    Permit() = default;
    Permit(Permit&& other) noexcept = default;
    Permit& operator=(Permit&& other) noexcept;
    ~Permit() { release(); }
    void release();

   private:
    friend class Quotas;
    explicit Permit(std::shared_ptr<std::atomic<int64_t>> running) : running_(std::move(running)) {}
    std::shared_ptr<std::atomic<int64_t>> running_;
  };

  explicit Quotas(TokensUsed used = {}) : used_(std::move(used)) {}

  // In this order:
  //   budget_tokens used up: 402, code insufficient_balance. It does not pass: no Retry-After.
  //   tokens_per_minute: 429, type tokens, code rate_limit_exceeded. Of a bucket that holds one
  //     minute's worth, starts full and fills steadily; refused while it holds nothing.
  //     Retry-After is when it will hold something.
  //   max_concurrent: 429, type requests, code rate_limit_exceeded; Retry-After 1.
  // Requests that were admitted run to their end: the balance may become negative, and a budget is
  // overrun by what was in work when it was used up.
  tl::expected<Permit, QuotaRefusal> admit(const ApiClient& client, Clock::time_point now);

  // Tokens that a request has cost, prompt and output, also of an aborted one. At its end, or in
  // parts while it goes on.
  void debit(const ApiClient& client, int64_t tokens, Clock::time_point now);

  // Requests in work.
  int64_t running(std::string_view client) const;

 private:
  struct State {
    std::shared_ptr<std::atomic<int64_t>> running;
    double balance = 0;  // tokens
    Clock::time_point filled;
  };
  State& state_of(const ApiClient& client, Clock::time_point now);

  const TokensUsed used_;
  mutable std::mutex mutex_;
  std::map<std::string, State, std::less<>> clients_;
};

}  // namespace tidemill
