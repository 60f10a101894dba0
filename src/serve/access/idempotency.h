// The header Idempotency-Key: a request that is sent again because its answer got lost is answered
// with what the first one gave, without being computed again.
//
// A key belongs to its client and to the request that came with it first. While that is at work, a
// second one is told to come back (409, Retry-After 1; official clients do so by themselves). When
// it has ended, its answer is kept for Limits::lifetime. A request that was aborted or failed
// leaves nothing: it may be tried anew. An answer too large to keep leaves a mark: 410, for
// computing it again is what the key forbids, and 409 would make clients ask again and again. When
// the store is full, the answers that ended first go first, and with them their keys.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include <tl/expected.hpp>

#include "base/clock.h"
#include "serve/http_error.h"
#include "state/content_key.h"

namespace tidemill {

// As the client got it, from the first byte of the body to the last; of a stream all its events.
struct StoredResponse {
  int status = 200;
  std::string content_type;
  std::string body;
  bool stream = false;
};

// SHA-256 of the three, kept apart by their lengths.
Digest request_digest(std::string_view method, std::string_view path, std::string_view body);

struct IdempotencyLimits {
  size_t entries = 4096;
  size_t bytes = size_t{64} << 20;          // of all kept answers and keys
  size_t response_bytes = size_t{1} << 20;  // of one answer's body
  Clock::duration lifetime = std::chrono::minutes(10);
};

// Any thread.
class IdempotencyStore {
 public:
  static constexpr size_t kMaxKeyBytes = 255;

  // The right to compute the answer to a key. Moves; must not outlive the store.
  class Claim {
   public:
    Claim() = default;
    Claim(Claim&& other) noexcept;
    Claim& operator=(Claim&& other) noexcept;
    ~Claim() { abandon(); }

    // False: nothing is claimed, the two below do nothing, and collecting an answer is idle work.
    explicit operator bool() const { return store_ != nullptr; }
    // Bytes of a body beyond which it will not be kept; collecting may stop there (finish with
    // is_whole = false).
    size_t response_limit() const;
    // The answer was given. is_whole = false: its body was too large to be collected.
    void finish(StoredResponse response, Clock::time_point now, bool is_whole = true);
    // It was not: the key is free again.
    void abandon();

   private:
    friend class IdempotencyStore;
    Claim(IdempotencyStore* store, std::string name) : store_(store), name_(std::move(name)) {}
    IdempotencyStore* store_ = nullptr;
    std::string name_;
  };

  // Either a claim (compute it), or the answer to replay.
  struct Begun {
    Claim claim;
    std::shared_ptr<const StoredResponse> replay;
  };

  explicit IdempotencyStore(IdempotencyLimits limits = {}) : limits_(limits) {}

  // `key`: the header's value, "" for none (then neither claim nor replay). Errors: 400 a key of
  // more than kMaxKeyBytes; 409 the first one is at work; 410 its answer was too large to keep; 422
  // it was another request (digest); 503 all entries are at work.
  tl::expected<Begun, HttpError> begin(std::string_view client, std::string_view key,
                                       const Digest& digest, Clock::time_point now);

  size_t entries() const;
  size_t bytes() const;

 private:
  struct Entry {
    Digest digest{};
    bool is_running = true;
    std::shared_ptr<const StoredResponse> response;  // null: too large
    size_t bytes = 0;
    Clock::time_point ended;
    std::list<std::string>::iterator place;  // in ended_
  };
  using Entries = std::map<std::string, Entry, std::less<>>;

  void finish(const std::string& name, StoredResponse response, bool is_whole,
              Clock::time_point now);
  void abandon(const std::string& name);
  void remove(Entries::iterator entry);
  void remove_expired(Clock::time_point now);

  const IdempotencyLimits limits_;
  mutable std::mutex mutex_;
  Entries entries_;
  std::list<std::string> ended_;  // names of entries that are not running, the oldest first
  size_t bytes_ = 0;
};

}  // namespace tidemill
