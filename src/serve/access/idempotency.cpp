#include "serve/access/idempotency.h"

#include <span>

namespace tidemill {
namespace {

// A client's name and its key as one: names hold no NUL.
std::string name_of(std::string_view client, std::string_view key) {
  std::string name(client);
  name += '\0';
  name += key;
  return name;
}

HttpError refusal(int status, std::string code, std::string message) {
  return {.status = status,
          .message = std::move(message),
          .type = status == 503 ? "server_error" : "invalid_request_error",
          .code = std::move(code)};
}

HttpError too_long(size_t bytes) {
  return refusal(400, "invalid_idempotency_key",
                 fmt::format("Idempotency-Key has {} bytes; at most {} are possible", bytes,
                             IdempotencyStore::kMaxKeyBytes));
}

HttpError mismatch() {
  return refusal(422, "idempotency_mismatch",
                 "this Idempotency-Key came before with another request (method, path or body "
                 "differ); a new request needs a new key");
}

HttpError at_work() {
  HttpError error = refusal(409, "idempotency_conflict",
                            "the request with this Idempotency-Key is still at work; try again "
                            "in 1 s for its answer");
  error.retry_after_s = 1;
  return error;
}

HttpError not_kept(double seconds, size_t limit) {
  return refusal(410, "idempotency_answer_not_kept",
                 fmt::format("the request with this Idempotency-Key was answered {:.0f} s ago, and "
                             "the answer was too large to be kept ({} bytes are possible); to "
                             "compute it again send it with a new key",
                             seconds, limit));
}

HttpError full(size_t entries) {
  HttpError error = refusal(503, "overloaded",
                            fmt::format("{} requests with an Idempotency-Key are at work, as many "
                                        "as can be; try again in 1 s",
                                        entries));
  error.retry_after_s = 1;
  return error;
}

}  // namespace

Digest request_digest(std::string_view method, std::string_view path, std::string_view body) {
  // The body's own digest has one length, so nothing of it can pass for the path's end.
  std::string text = fmt::format("{} {}:{} {}:", method.size(), method, path.size(), path);
  const Digest inner = sha256(std::as_bytes(std::span(body.data(), body.size())));
  text.append(inner.begin(), inner.end());
  return sha256(std::as_bytes(std::span(text.data(), text.size())));
}

// ---- Claim

IdempotencyStore::Claim::Claim(Claim&& other) noexcept
    : store_(std::exchange(other.store_, nullptr)), name_(std::move(other.name_)) {}

IdempotencyStore::Claim& IdempotencyStore::Claim::operator=(Claim&& other) noexcept {
  if (this != &other) {
    abandon();
    store_ = std::exchange(other.store_, nullptr);
    name_ = std::move(other.name_);
  }
  return *this;
}

size_t IdempotencyStore::Claim::response_limit() const {
  return store_ == nullptr ? 0 : store_->limits_.response_bytes;
}

void IdempotencyStore::Claim::finish(StoredResponse response, Clock::time_point now,
                                     bool is_whole) {
  if (IdempotencyStore* const store = std::exchange(store_, nullptr)) {
    store->finish(name_, std::move(response), is_whole, now);
  }
}

void IdempotencyStore::Claim::abandon() {
  if (IdempotencyStore* const store = std::exchange(store_, nullptr)) store->abandon(name_);
}

// ---- Store

tl::expected<IdempotencyStore::Begun, HttpError> IdempotencyStore::begin(std::string_view client,
                                                                         std::string_view key,
                                                                         const Digest& digest,
                                                                         Clock::time_point now) {
  if (key.empty()) return Begun{};
  if (key.size() > kMaxKeyBytes) return tl::unexpected(too_long(key.size()));
  std::string name = name_of(client, key);

  const std::lock_guard lock(mutex_);
  remove_expired(now);
  if (const auto place = entries_.find(name); place != entries_.end()) {
    const Entry& entry = place->second;
    if (entry.digest != digest) return tl::unexpected(mismatch());
    if (entry.is_running) return tl::unexpected(at_work());
    if (entry.response == nullptr) {
      return tl::unexpected(not_kept(seconds_between(entry.ended, now), limits_.response_bytes));
    }
    return Begun{{}, entry.response};
  }
  if (entries_.size() >= limits_.entries) {
    if (ended_.empty()) return tl::unexpected(full(entries_.size()));
    remove(entries_.find(ended_.front()));
  }
  Entry entry;
  entry.digest = digest;
  entry.bytes = name.size();
  bytes_ += entry.bytes;
  entries_.emplace(name, std::move(entry));
  return Begun{Claim(this, std::move(name)), nullptr};
}

void IdempotencyStore::finish(const std::string& name, StoredResponse response, bool is_whole,
                              Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  const auto place = entries_.find(name);
  Entry& entry = place->second;  // entries at work are never removed but by their claim
  entry.is_running = false;
  entry.ended = now;
  entry.place = ended_.insert(ended_.end(), name);
  if (!is_whole || response.body.size() > limits_.response_bytes) return;

  const size_t size = response.body.size() + response.content_type.size();
  entry.response = std::make_shared<const StoredResponse>(std::move(response));
  entry.bytes += size;
  bytes_ += size;
  while (bytes_ > limits_.bytes && !ended_.empty()) remove(entries_.find(ended_.front()));
}

void IdempotencyStore::abandon(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto place = entries_.find(name);
  bytes_ -= place->second.bytes;
  entries_.erase(place);
}

void IdempotencyStore::remove(Entries::iterator entry) {
  bytes_ -= entry->second.bytes;
  ended_.erase(entry->second.place);
  entries_.erase(entry);
}

void IdempotencyStore::remove_expired(Clock::time_point now) {
  while (!ended_.empty()) {
    const auto oldest = entries_.find(ended_.front());
    if (now - oldest->second.ended < limits_.lifetime) break;
    remove(oldest);
  }
}

size_t IdempotencyStore::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

size_t IdempotencyStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace tidemill
