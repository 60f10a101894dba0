// Rotary embedding of the last rope_dim elements of each head; pairs are adjacent elements.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/tensor.h"

namespace tidemill {

struct Config;

// float32 frequencies [rope_dim / 2]: plain with rope_theta (ratio-0 layers and the drafter), or
// compress_rope_theta with YaRN, which applies at every length and has no attention temperature.
std::vector<float> rope_frequencies(const Config& config, bool compressed);

// table[t] = cos of the rope_dim / 2 angles, then their sines; angle = fl32(fl32(position) * f).
struct RopeTableArgs {
  const int64_t* position = nullptr;  // [table.count]
  const float* frequencies = nullptr;
  Rows table;  // width = rope_dim
};

// In place, result rounded to bf16. Inverse rotates by the negative angle.
struct RopeArgs {
  Rows x;  // width = heads * head_dim
  int64_t heads = 1;
  Rows table;
  bool inverse = false;
};

}  // namespace tidemill
