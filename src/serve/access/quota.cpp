#include "serve/access/quota.h"

#include <algorithm>
#include <cmath>

namespace tidemill {
namespace {

double per_second(const ApiClient& client) {
  return static_cast<double>(client.tokens_per_minute) / 60;
}

QuotaRefusal no_budget(const ApiClient& client, int64_t used) {
  return {
      {.status = 402,
       .message = fmt::format("Insufficient balance: the key '{}' has used {} of its {} tokens; "
                              "ask the operator of this server for more",
                              client.name, used, client.budget_tokens),
       .type = "insufficient_quota",
       .code = "insufficient_balance"},
      "budget"};
}

QuotaRefusal too_fast(const ApiClient& client, double balance) {
  // The first whole second after which the bucket holds something: at 0 it does not yet.
  const auto wait = static_cast<int64_t>(std::floor(-balance / per_second(client))) + 1;
  return {{.status = 429,
           .retry_after_s = wait,
           .message = fmt::format("Rate limit reached for key '{}': {} tokens per minute, {:.0f} "
                                  "used ahead of it. Please try again in {} s",
                                  client.name, client.tokens_per_minute, -balance, wait),
           .type = "tokens",
           .code = "rate_limit_exceeded"},
          "rate"};
}

QuotaRefusal too_many(const ApiClient& client) {
  return {{.status = 429,
           .retry_after_s = 1,
           .message = fmt::format("Too many requests at once for key '{}': {} are in work, and {} "
                                  "may be. Please try again in 1 s",
                                  client.name, client.max_concurrent, client.max_concurrent),
           .type = "requests",
           .code = "rate_limit_exceeded"},
          "concurrency"};
}

}  // namespace

Quotas::Permit& Quotas::Permit::operator=(Permit&& other) noexcept {
  if (this != &other) {
    release();
    running_ = std::move(other.running_);
  }
  return *this;
}

void Quotas::Permit::release() {
  if (running_ != nullptr) running_->fetch_sub(1);
  running_.reset();
}

Quotas::State& Quotas::state_of(const ApiClient& client, Clock::time_point now) {
  const auto full = static_cast<double>(client.tokens_per_minute);
  auto place = clients_.find(client.name);
  if (place == clients_.end()) {
    place =
        clients_.emplace(client.name, State{std::make_shared<std::atomic<int64_t>>(0), full, now})
            .first;
  }
  State& state = place->second;
  if (now > state.filled) {
    state.balance =
        std::min(full, state.balance + seconds_between(state.filled, now) * per_second(client));
    state.filled = now;
  }
  return state;
}

tl::expected<Quotas::Permit, QuotaRefusal> Quotas::admit(const ApiClient& client,
                                                         Clock::time_point now) {
  if (client.budget_tokens > 0 && used_) {
    const int64_t used = used_(client.name);
    if (used >= client.budget_tokens) return tl::unexpected(no_budget(client, used));
  }
  const std::lock_guard lock(mutex_);
  State& state = state_of(client, now);
  if (client.tokens_per_minute > 0 && state.balance <= 0) {
    return tl::unexpected(too_fast(client, state.balance));
  }
  if (client.max_concurrent > 0 && state.running->load() >= client.max_concurrent) {
    return tl::unexpected(too_many(client));
  }
  state.running->fetch_add(1);
  return Permit(state.running);
}

void Quotas::debit(const ApiClient& client, int64_t tokens, Clock::time_point now) {
  if (client.tokens_per_minute == 0 || tokens <= 0) return;
  const std::lock_guard lock(mutex_);
  state_of(client, now).balance -= static_cast<double>(tokens);
}

int64_t Quotas::running(std::string_view client) const {
  const std::lock_guard lock(mutex_);
  const auto place = clients_.find(client);
  return place == clients_.end() ? 0 : place->second.running->load();
}

}  // namespace tidemill
