#include "serve/access/idempotency.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

namespace tidemill {
namespace {

using testing::HasSubstr;

Clock::time_point at(double seconds) {
  return Clock::time_point(std::chrono::hours(1000)) +
         std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

const Digest kRequest = request_digest("POST", "/v1/chat/completions", "{}");
const Digest kOther = request_digest("POST", "/v1/chat/completions", "{ }");

StoredResponse response(std::string body = "answer") {
  return {
      .status = 200, .content_type = "text/event-stream", .body = std::move(body), .stream = true};
}

int status_of(IdempotencyStore& store, std::string_view key, double seconds,
              const Digest& digest = kRequest) {
  const auto begun = store.begin("alice", key, digest, at(seconds));
  if (!begun) return begun.error().status;
  return begun->replay != nullptr ? 200 : 0;  // 0: may compute
}

TEST(Idempotency, ReplaysTheAnswer) {
  IdempotencyStore store;
  auto first = store.begin("alice", "k", kRequest, at(0));
  ASSERT_TRUE(first && first->claim);
  first->claim.finish(response("data: 1\n\ndata: [DONE]\n\n"), at(1));
  EXPECT_FALSE(first->claim);
  for (int i = 0; i < 3; ++i) {
    const auto again = store.begin("alice", "k", kRequest, at(2));
    ASSERT_TRUE(again);
    EXPECT_FALSE(again->claim);
    ASSERT_NE(again->replay, nullptr);
    EXPECT_EQ(again->replay->status, 200);
    EXPECT_EQ(again->replay->content_type, "text/event-stream");
    EXPECT_EQ(again->replay->body, "data: 1\n\ndata: [DONE]\n\n");
    EXPECT_TRUE(again->replay->stream);
  }
}

TEST(Idempotency, NoKeyNoClaim) {
  IdempotencyStore store;
  auto begun = store.begin("alice", "", kRequest, at(0));
  ASSERT_TRUE(begun);
  EXPECT_FALSE(begun->claim);
  EXPECT_EQ(begun->replay, nullptr);
  begun->claim.finish(response(), at(0));
  begun->claim.abandon();
  EXPECT_EQ(store.entries(), 0u);
}

TEST(Idempotency, WhileAtWork) {
  IdempotencyStore store;
  auto first = store.begin("alice", "k", kRequest, at(0));
  const auto second = store.begin("alice", "k", kRequest, at(100'000));  // work does not expire
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().status, 409);
  EXPECT_EQ(second.error().retry_after_s, 1);
  EXPECT_EQ(second.error().code, "idempotency_conflict");
  EXPECT_EQ(status_of(store, "k", 0, kOther), 422);
  EXPECT_TRUE(store.begin("bob", "k", kOther, at(0))->claim);  // keys are each client's own
}

TEST(Idempotency, NamesAndKeysAreKeptApart) {
  IdempotencyStore store;
  auto first = store.begin("ab", "c", kRequest, at(0));
  const auto second = store.begin("a", "bc", kRequest, at(0));
  ASSERT_TRUE(second);
  EXPECT_TRUE(second->claim);
}

TEST(Idempotency, AnotherRequestIsRefused) {
  IdempotencyStore store;
  store.begin("alice", "k", kRequest, at(0))->claim.finish(response(), at(0));
  const auto begun = store.begin("alice", "k", kOther, at(1));
  ASSERT_FALSE(begun);
  EXPECT_EQ(begun.error().status, 422);
  EXPECT_FALSE(begun.error().retry_after_s.has_value());
}

TEST(Idempotency, DigestTellsPartsApart) {
  std::set<Digest> digests;
  const std::vector<std::array<std::string, 3>> requests = {
      {"POST", "/a", "bc"}, {"POST", "/ab", "c"}, {"POST", "/abc", ""}, {"POST/", "a", "bc"},
      {"PUT", "/a", "bc"},  {"POST", "/a", "bd"}, {"", "", ""},         {"POST", "/a 2:", "bc"}};
  for (const auto& [method, path, body] : requests) {
    digests.insert(request_digest(method, path, body));
  }
  EXPECT_EQ(digests.size(), requests.size());
}

TEST(Idempotency, AbandonedMayBeTriedAfresh) {
  IdempotencyStore store;
  {
    auto dropped = store.begin("alice", "k", kRequest, at(0));
    EXPECT_EQ(status_of(store, "k", 0), 409);
  }
  EXPECT_EQ(store.entries(), 0u);
  auto begun = store.begin("alice", "k", kOther, at(0));
  ASSERT_TRUE(begun->claim);
  begun->claim.abandon();
  EXPECT_EQ(store.entries(), 0u);
  EXPECT_EQ(store.bytes(), 0u);
}

TEST(Idempotency, ClaimMoves) {
  IdempotencyStore store;
  IdempotencyStore::Claim kept;
  {
    auto begun = store.begin("alice", "k", kRequest, at(0));
    kept = std::move(begun->claim);
  }
  EXPECT_EQ(status_of(store, "k", 0), 409);
  kept = std::move(store.begin("alice", "other", kRequest, at(0))->claim);  // abandons the first
  EXPECT_EQ(status_of(store, "k", 0), 0);
  kept.finish(response(), at(0));
  EXPECT_EQ(status_of(store, "other", 0), 200);
}

TEST(Idempotency, LifetimeCountsFromTheEnd) {
  IdempotencyStore store;
  auto begun = store.begin("alice", "k", kRequest, at(0));
  begun->claim.finish(response(), at(1000));
  EXPECT_EQ(status_of(store, "k", 1599.9), 200);
  EXPECT_EQ(status_of(store, "k", 1600), 0);
  EXPECT_EQ(store.entries(), 0u);
}

TEST(Idempotency, TooLargeIsRemembered) {
  IdempotencyStore store({.response_bytes = 10});
  store.begin("alice", "fits", kRequest, at(0))->claim.finish(response("0123456789"), at(0));
  auto large = store.begin("alice", "large", kRequest, at(0));
  EXPECT_EQ(large->claim.response_limit(), 10u);
  large->claim.finish(response("0123456789x"), at(0));
  store.begin("alice", "cut", kRequest, at(0))->claim.finish(response(""), at(0), false);
  EXPECT_EQ(status_of(store, "fits", 1), 200);
  for (const char* key : {"large", "cut"}) {
    const auto again = store.begin("alice", key, kRequest, at(7));
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().status, 410);
    EXPECT_THAT(again.error().message, HasSubstr("answered 7 s ago"));
  }
  EXPECT_EQ(status_of(store, "large", 600), 0);
}

TEST(Idempotency, KeyLength) {
  IdempotencyStore store;
  EXPECT_EQ(status_of(store, std::string(255, 'k'), 0), 0);
  EXPECT_EQ(status_of(store, std::string(256, 'k'), 0), 400);
}

TEST(Idempotency, EntriesAreBounded) {
  IdempotencyStore store({.entries = 3});
  std::vector<IdempotencyStore::Claim> claims;
  for (const char* key : {"a", "b", "c"}) {
    claims.push_back(std::move(store.begin("alice", key, kRequest, at(0))->claim));
  }
  const auto full = store.begin("alice", "d", kRequest, at(0));
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().status, 503);
  EXPECT_EQ(full.error().retry_after_s, 1);
  claims[1].finish(response(), at(1));
  claims[0].finish(response(), at(2));
  EXPECT_EQ(status_of(store, "d", 3), 0);    // takes the place of b, which ended first
  EXPECT_EQ(status_of(store, "a", 3), 200);  // d was let go of
  EXPECT_EQ(status_of(store, "c", 3), 409);
  EXPECT_EQ(store.entries(), 2u);
}

TEST(Idempotency, BytesAreBounded) {
  IdempotencyStore store({.bytes = 1000, .response_bytes = 1000});
  for (int i = 0; i < 100; ++i) {
    store.begin("alice", fmt::format("{}", i), kRequest, at(i))
        ->claim.finish(response(std::string(300, 'x')), at(i));
    EXPECT_LE(store.bytes(), 1000u);
  }
  EXPECT_EQ(store.entries(), 3u);
  EXPECT_EQ(status_of(store, "99", 100), 200);
  EXPECT_EQ(status_of(store, "96", 100), 0);
  // A larger answer than all there is room for does not stay.
  store.begin("alice", "big", kRequest, at(100))
      ->claim.finish(response(std::string(999, 'x')), at(100));
  EXPECT_LE(store.bytes(), 1000u);
  EXPECT_EQ(status_of(store, "big", 100), 0);
}

TEST(Idempotency, OneOfManyThreadsComputes) {
  IdempotencyStore store;
  std::atomic<int> computed{0};
  std::atomic<int> replayed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        auto begun = store.begin("alice", fmt::format("{}", i), kRequest, at(0));
        if (!begun) continue;  // at work
        if (begun->replay != nullptr) {
          ++replayed;
        } else {
          ++computed;
          begun->claim.finish(response(), at(0));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(computed.load(), 500);
  EXPECT_LE(replayed.load(), 1500);
}

}  // namespace
}  // namespace tidemill
