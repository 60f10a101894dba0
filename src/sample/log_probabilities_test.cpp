#include "sample/log_probabilities.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace tidemill {
namespace {

using testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(LogProbabilities, AgreeWithDoublePrecision) {
  std::mt19937 generator(1);
  for (const size_t size : {1, 2, 15, 16, 17, 1000, 129280}) {
    std::normal_distribution<float> values(30.0f, 8.0f);
    std::vector<float> logits(size);
    for (float& logit : logits) logit = std::round(values(generator) * 4.0f) / 4.0f;  // with ties
    const auto chosen = static_cast<int32_t>(generator() % size);

    double sum = 0.0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    std::vector<int32_t> order(size);
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
    });

    LogProbabilities out;
    ASSERT_TRUE(log_probabilities(logits, chosen, 20, 0, out));
    EXPECT_EQ(out.chosen.token, chosen);
    EXPECT_NEAR(out.chosen.logprob, logits[chosen] - std::log(sum), 1e-5);
    ASSERT_EQ(out.top.size(), std::min<size_t>(size, 20));
    for (size_t i = 0; i < out.top.size(); ++i) {
      EXPECT_EQ(out.top[i].token, order[i]) << "rank " << i << " of " << size;
      EXPECT_NEAR(out.top[i].logprob, logits[order[i]] - std::log(sum), 1e-5);
    }
  }
}

TEST(LogProbabilities, MaskedTokensAreMinusInfinity) {
  LogProbabilities out;
  const std::vector<float> logits = {-kInfinity, 1.0f, -kInfinity};
  ASSERT_TRUE(log_probabilities(logits, 0, 3, 0, out));
  EXPECT_EQ(out.chosen.logprob, -kInfinity);
  EXPECT_EQ(out.top[0].token, 1);
  EXPECT_EQ(out.top[0].logprob, 0.0f);
  EXPECT_EQ(out.top[1].token, 0);
  EXPECT_EQ(out.top[2].token, 2);
}

TEST(LogProbabilities, NoTopWanted) {
  LogProbabilities out;
  out.top.resize(3);
  ASSERT_TRUE(log_probabilities(std::vector<float>{0.0f, 0.0f}, 1, 0, 0, out));
  EXPECT_TRUE(out.top.empty());
  EXPECT_NEAR(out.chosen.logprob, -std::log(2.0f), 1e-6f);
}

TEST(LogProbabilities, BadRowsNamePositionAndToken) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
    for (const size_t token : {0, 31, 34}) {  // in the first lane, in the last, in the rest
      std::vector<float> logits(35, 1.0f);
      logits[token] = bad;
      const auto result = largest_logit(logits, 17);
      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().code, ErrorCode::kInternal);
      EXPECT_THAT(result.error().message, HasSubstr("position 17"));
      EXPECT_THAT(result.error().message, HasSubstr("at token " + std::to_string(token)));
    }
  }
  const auto masked = largest_logit(std::vector<float>(35, -kInfinity), 9);
  ASSERT_FALSE(masked);
  EXPECT_THAT(masked.error().message, HasSubstr("position 9: all 35 tokens are masked"));
  LogProbabilities out;
  EXPECT_FALSE(log_probabilities(std::vector<float>(35, -kInfinity), 0, 1, 9, out));
}

}  // namespace
}  // namespace tidemill
