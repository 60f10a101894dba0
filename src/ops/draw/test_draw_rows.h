// Rows of logits and ways to draw from them, of all kinds. Included by tests only.
#pragma once

#include <cmath>
#include <limits>
#include <span>

#include "ops/test_inputs.h"

namespace tidemill {

// Flat to steep; one in four with many equal values, one in four with masked tokens.
inline void fill_draw_row(TestInputs& in, std::span<float> row) {
  constexpr float kDeviations[] = {0.0f, 0.01f, 1.0f, 3.0f, 10.0f};
  const float deviation = kDeviations[in.below(5)];
  const bool ties = in.below(4) == 0;
  const bool masks = in.below(4) == 0;
  for (float& logit : row) {
    logit = in.normal(1.0f) * deviation;
    if (ties) logit = std::round(2 * logit) / 2;
    if (masks && in.below(3) == 0) logit = -std::numeric_limits<float>::infinity();
  }
  row[static_cast<size_t>(in.below(static_cast<int64_t>(row.size())))] = 2 * deviation;
}

template <typename T, size_t n>
T any_of(TestInputs& in, const T (&values)[n]) {
  return values[in.below(n)];
}

// The values of top-p do not end at whole numbers of equal tokens.
inline DrawRow random_draw_row(TestInputs& in) {
  const float min_p = any_of(in, {0.0f, 0.0f, 0.0f, 0.05f, 0.5f, 1.0f});
  return {
      .key = {.seed = static_cast<uint64_t>(in.below(int64_t{1} << 62)),
              .position = in.below(int64_t{1} << 40)},
      .temperature = any_of(in, {0.0f, 1e-4f, 0.1f, 0.6f, 1.0f, 1.5f, 30.0f}),
      .lowest = min_p > 0.0f ? std::log(min_p) : -104.0f,
      .top_k = any_of(in, {0, 0, 0, 1, 2, 20, 50, 1000, 200'000}),
      .top_p = any_of(in, {1.0f, 1.0f, 0.9531f, 0.9073f, 0.5072f, 0.1031f, 1e-6f, 0.99999994f})};
}

}  // namespace tidemill
