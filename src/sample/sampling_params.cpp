#include <cmath>
#include <string_view>

#include "base/result.h"
#include "tidemill/sampling.h"

namespace tidemill {
namespace {

// False for NaN, which no comparison admits.
bool within(float value, float low, float high) { return value >= low && value <= high; }

Status refuse(std::string_view field, float value, std::string_view range) {
  return fail(ErrorCode::kInvalidArgument, "{} is {}; it must be {}", field, value, range);
}

}  // namespace

Status SamplingParams::validate(int64_t vocabulary) const {
  if (!(temperature >= 0.0f) || !std::isfinite(temperature)) {
    return refuse("temperature", temperature, "a number >= 0 (0 takes the most likely token)");
  }
  if (top_k < -1) {
    return fail(ErrorCode::kInvalidArgument,
                "top_k is {}; it must be >= 1, or 0 or -1 to keep all tokens", top_k);
  }
  if (!(top_p > 0.0f) || !(top_p <= 1.0f)) return refuse("top_p", top_p, "above 0 and at most 1");
  if (!within(min_p, 0.0f, 1.0f)) return refuse("min_p", min_p, "from 0 to 1");
  if (!(repetition_penalty > 0.0f) || !std::isfinite(repetition_penalty)) {
    return refuse("repetition_penalty", repetition_penalty, "a number above 0 (1 has no effect)");
  }
  if (!within(presence_penalty, -2.0f, 2.0f)) {
    return refuse("presence_penalty", presence_penalty, "from -2 to 2");
  }
  if (!within(frequency_penalty, -2.0f, 2.0f)) {
    return refuse("frequency_penalty", frequency_penalty, "from -2 to 2");
  }
  for (const auto& [token, bias] : logit_bias) {
    if (token < 0 || token >= vocabulary) {
      return fail(ErrorCode::kInvalidArgument, "logit_bias names token {}; the vocabulary is 0..{}",
                  token, vocabulary - 1);
    }
    if (!within(bias, -100.0f, 100.0f)) {
      return fail(ErrorCode::kInvalidArgument,
                  "logit_bias of token {} is {}; it must be from -100 to 100", token, bias);
    }
  }
  if (logprobs && (*logprobs < 0 || *logprobs > kMaxLogprobs)) {
    return fail(ErrorCode::kInvalidArgument, "logprobs is {}; it must be from 0 to {}", *logprobs,
                kMaxLogprobs);
  }
  return {};
}

}  // namespace tidemill
