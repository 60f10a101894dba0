#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>

#include "tidemill/sampling.h"

namespace tidemill {
namespace {

using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kVocabulary = 100;

TEST(SamplingParams, DefaultsAndLimitsAreValid) {
  EXPECT_TRUE(SamplingParams{}.validate(kVocabulary));
  SamplingParams params;
  params.logit_bias = {{0, -100.0f}, {99, 100.0f}};
  params.temperature = 0.0f;
  params.top_k = -1;
  params.top_p = 1e-30f;
  params.min_p = 1.0f;
  params.presence_penalty = -2.0f;
  params.frequency_penalty = 2.0f;
  params.repetition_penalty = 1e-6f;
  params.logprobs = 0;
  EXPECT_TRUE(params.validate(kVocabulary));
  params.logprobs = 20;
  EXPECT_TRUE(params.validate(kVocabulary));
}

TEST(SamplingParams, RefusalsNameFieldAndValue) {
  struct Case {
    std::function<void(SamplingParams&)> change;
    std::string field, value;
  };
  const Case cases[] = {
      {[](auto& p) { p.temperature = -0.5f; }, "temperature", "-0.5"},
      {[](auto& p) { p.temperature = kNan; }, "temperature", "nan"},
      {[](auto& p) { p.temperature = kInfinity; }, "temperature", "inf"},
      {[](auto& p) { p.top_k = -2; }, "top_k", "-2"},
      {[](auto& p) { p.top_p = 0.0f; }, "top_p", "0"},
      {[](auto& p) { p.top_p = 1.5f; }, "top_p", "1.5"},
      {[](auto& p) { p.top_p = kNan; }, "top_p", "nan"},
      {[](auto& p) { p.min_p = -0.25f; }, "min_p", "-0.25"},
      {[](auto& p) { p.min_p = 1.25f; }, "min_p", "1.25"},
      {[](auto& p) { p.min_p = kNan; }, "min_p", "nan"},
      {[](auto& p) { p.repetition_penalty = 0.0f; }, "repetition_penalty", "0"},
      {[](auto& p) { p.repetition_penalty = kNan; }, "repetition_penalty", "nan"},
      {[](auto& p) { p.repetition_penalty = kInfinity; }, "repetition_penalty", "inf"},
      {[](auto& p) { p.presence_penalty = 2.5f; }, "presence_penalty", "2.5"},
      {[](auto& p) { p.presence_penalty = kNan; }, "presence_penalty", "nan"},
      {[](auto& p) { p.frequency_penalty = -2.5f; }, "frequency_penalty", "-2.5"},
      {[](auto& p) {
         p.logit_bias = {{-1, 0.0f}};
       },
       "logit_bias", "-1"},
      {[](auto& p) {
         p.logit_bias = {{100, 0.0f}};
       },
       "logit_bias", "100"},
      {[](auto& p) {
         p.logit_bias = {{7, 100.5f}};
       },
       "logit_bias of token 7", "100.5"},
      {[](auto& p) {
         p.logit_bias = {{7, kNan}};
       },
       "logit_bias of token 7", "nan"},
      {[](auto& p) { p.logprobs = -1; }, "logprobs", "-1"},
      {[](auto& p) { p.logprobs = 21; }, "logprobs", "21"},
  };
  for (const Case& c : cases) {
    SamplingParams params;
    c.change(params);
    const Status status = params.validate(kVocabulary);
    ASSERT_FALSE(status) << c.field << " " << c.value;
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.error().message, HasSubstr(c.field));
    EXPECT_THAT(status.error().message, HasSubstr(c.value));
  }
}

}  // namespace
}  // namespace tidemill
