#include "serve/access/quota.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace tidemill {
namespace {

using testing::HasSubstr;

Clock::time_point at(double seconds) {
  return Clock::time_point(std::chrono::hours(1000)) +
         std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

ApiClient client() { return {.name = "alice"}; }

TEST(Quotas, NoLimits) {
  Quotas quotas;
  std::vector<Quotas::Permit> permits;
  for (int i = 0; i < 1000; ++i) {
    auto permit = quotas.admit(client(), at(0));
    ASSERT_TRUE(permit);
    permits.push_back(std::move(*permit));
    quotas.debit(client(), 1'000'000'000, at(0));
  }
  EXPECT_EQ(quotas.running("alice"), 1000);
  permits.clear();
  EXPECT_EQ(quotas.running("alice"), 0);
  EXPECT_EQ(quotas.running("nobody"), 0);
}

TEST(Quotas, Concurrency) {
  ApiClient alice = client();
  alice.max_concurrent = 2;
  Quotas quotas;
  auto first = quotas.admit(alice, at(0));
  auto second = quotas.admit(alice, at(0));
  ASSERT_TRUE(first && second);
  const auto third = quotas.admit(alice, at(0));
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().reason, "concurrency");
  EXPECT_EQ(third.error().error.status, 429);
  EXPECT_EQ(third.error().error.type, "requests");
  EXPECT_EQ(third.error().error.code, "rate_limit_exceeded");
  EXPECT_EQ(third.error().error.retry_after_s, 1);
  EXPECT_THAT(third.error().error.message, HasSubstr("2 are in work"));
  EXPECT_TRUE(quotas.admit({.name = "bob", .max_concurrent = 2}, at(0)));

  Quotas::Permit moved = std::move(*first);
  first->release();  // nothing is in it any more
  EXPECT_EQ(quotas.running("alice"), 2);
  moved = std::move(*second);  // gives the first one back
  EXPECT_EQ(quotas.running("alice"), 1);
  moved.release();
  moved.release();
  EXPECT_EQ(quotas.running("alice"), 0);
}

TEST(Quotas, PermitOutlivesTheQuotas) {
  Quotas::Permit permit;
  {
    Quotas quotas;
    permit = *quotas.admit(client(), at(0));
  }
  permit.release();
}

TEST(Quotas, TokensPerMinute) {
  ApiClient alice = client();
  alice.tokens_per_minute = 600;  // 10 a second
  Quotas quotas;
  ASSERT_TRUE(quotas.admit(alice, at(0)));
  quotas.debit(alice, 599, at(0));
  EXPECT_TRUE(quotas.admit(alice, at(0)));  // one is left
  quotas.debit(alice, 1, at(0));
  const auto empty = quotas.admit(alice, at(0));
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.error().reason, "rate");
  EXPECT_EQ(empty.error().error.status, 429);
  EXPECT_EQ(empty.error().error.type, "tokens");
  EXPECT_EQ(empty.error().error.code, "rate_limit_exceeded");
  EXPECT_EQ(empty.error().error.retry_after_s, 1);
  EXPECT_THAT(empty.error().error.message, HasSubstr("600 tokens per minute"));
  EXPECT_TRUE(quotas.admit(alice, at(0.1)));

  // Into debt, and out of it exactly when Retry-After said.
  quotas.debit(alice, 1000, at(1));
  const auto debt = quotas.admit(alice, at(1));
  ASSERT_FALSE(debt);
  const auto wait = static_cast<double>(debt.error().error.retry_after_s.value());
  EXPECT_EQ(wait, 100);  // 990 tokens, and more than nothing
  EXPECT_FALSE(quotas.admit(alice, at(1 + wait - 1)));
  EXPECT_TRUE(quotas.admit(alice, at(1 + wait)));
}

TEST(Quotas, BucketHoldsOneMinute) {
  ApiClient alice = client();
  alice.tokens_per_minute = 60;
  Quotas quotas;
  EXPECT_TRUE(quotas.admit(alice, at(0)));
  quotas.debit(alice, 60, at(100'000));  // a day's pause saves up no more than a minute
  EXPECT_FALSE(quotas.admit(alice, at(100'000)));
  EXPECT_FALSE(quotas.admit(alice, at(5)));  // time that goes back fills nothing
  EXPECT_TRUE(quotas.admit(alice, at(100'001)));
}

TEST(Quotas, RefusedRequestsTakeNoPlace) {
  ApiClient alice = client();
  alice.tokens_per_minute = 60;
  alice.max_concurrent = 1;
  Quotas quotas;
  quotas.debit(alice, 60, at(0));
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(quotas.admit(alice, at(0)));
  EXPECT_EQ(quotas.running("alice"), 0);
  EXPECT_TRUE(quotas.admit(alice, at(2)));
}

TEST(Quotas, Budget) {
  ApiClient alice = client();
  alice.budget_tokens = 100;
  int64_t used = 99;
  Quotas quotas([&](std::string_view name) { return name == "alice" ? used : 1'000'000; });
  EXPECT_TRUE(quotas.admit(alice, at(0)));
  used = 100;
  const auto refused = quotas.admit(alice, at(0));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, "budget");
  EXPECT_EQ(refused.error().error.status, 402);
  EXPECT_EQ(refused.error().error.code, "insufficient_balance");
  EXPECT_FALSE(refused.error().error.retry_after_s.has_value());
  EXPECT_THAT(refused.error().error.message, HasSubstr("100 of its 100 tokens"));
  EXPECT_TRUE(quotas.admit({.name = "bob"}, at(0)));  // has none
}

TEST(Quotas, FromManyThreads) {
  ApiClient alice = client();
  alice.max_concurrent = 3;
  Quotas quotas;
  std::atomic<int64_t> most{0};
  std::atomic<int64_t> admitted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5000; ++i) {
        auto permit = quotas.admit(alice, at(0));
        if (!permit) continue;
        ++admitted;
        const int64_t now = quotas.running("alice");
        int64_t before = most.load();
        while (now > before && !most.compare_exchange_weak(before, now)) {
        }
        quotas.debit(alice, 5, at(0));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most.load(), 3);
  EXPECT_GT(admitted.load(), 0);
  EXPECT_EQ(quotas.running("alice"), 0);
}

}  // namespace
}  // namespace tidemill
