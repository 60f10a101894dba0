#include "sample/drawn.h"

#include <cmath>

#include "sample/sampler.h"

namespace tidemill {

DrawRow draw_row(const SamplingParams& params, const NoiseKey& key) {
  if (params.greedy()) return {};
  return {.key = key,
          .temperature = params.temperature,
          .lowest = lowest_scaled(params),
          .top_k = params.top_k,
          .top_p = params.top_p};
}

DrawRow draft_row(float temperature, const NoiseKey& key) {
  SamplingParams params;
  params.temperature = temperature;
  return draw_row(params, key);
}

std::optional<int32_t> drawn_token(const DrawRow& row, const Drawn& drawn) {
  if (drawn.count == 0) return std::nullopt;
  if (drawn.count == 1) return drawn.id[0];
  return draw(row.key, std::span(drawn.id, static_cast<size_t>(drawn.count)),
              [&](size_t i) { return static_cast<double>(std::exp(drawn.scaled[i])); });
}

}  // namespace tidemill
