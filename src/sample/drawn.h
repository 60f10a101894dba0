// Draws by a backend (ops/draw/draw.h) that are those of the sampler, token by token.
#pragma once

#include <optional>

#include "ops/draw/draw.h"
#include "tidemill/sampling.h"

namespace tidemill {

// How a backend draws what Sampler::sample does. Single logits stay as they are: not for parameters
// that edit them (penalties.h).
DrawRow draw_row(const SamplingParams& params, const NoiseKey& key);
// The same for Sampler::draft.
DrawRow draft_row(float temperature, const NoiseKey& key);

// The token that the sampler draws from the row. Nothing: only the row itself can tell.
std::optional<int32_t> drawn_token(const DrawRow& row, const Drawn& drawn);

}  // namespace tidemill
