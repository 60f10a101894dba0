// Which token is drawn from each row of logits: by the race of base/noise.h, as the sampler does it
// (sample/sampler.h), without the row being fetched.
#pragma once

#include "base/noise.h"
#include "ops/tensor.h"

namespace tidemill {

// How a row is drawn from. Logits are scaled: (logit - the row's largest) / temperature.
struct DrawRow {
  NoiseKey key;
  float temperature = 0.0f;  // 0: the largest logit, of equal ones that with the lowest id
  float lowest = 0.0f;       // tokens that are scaled to less are out
  int32_t top_k = 0;         // <= 0: off
  float top_p = 1.0f;        // of what top-k leaves; 1: off
};

// Tokens among which the drawn one is, by ascending id: one, but for a draw in ten thousand. The
// last bits of exp and log are each machine's own, so what is too close to call is left to the host
// (sample/drawn.h). None if the row itself has to be seen: no token can be drawn (a logit is not
// below infinity, NaN is not; or all are -infinity), or top-p ends too close to the drawn one.
struct Drawn {
  static constexpr int32_t kMost = 4;
  int32_t count = 0;
  int32_t id[kMost] = {};
  float scaled[kMost] = {};
};

struct DrawArgs {
  Rows logits;                    // [T, vocabulary]
  const DrawRow* rows = nullptr;  // [T]
  Drawn* drawn = nullptr;         // [T]
};

}  // namespace tidemill
