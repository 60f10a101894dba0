// The largest logit of each row: what greedy sampling draws.
#pragma once

#include "ops/tensor.h"

namespace tidemill {

// id[t]: the column of the largest value of row t, the lowest of equal ones; -1 where no token can
// be drawn: a value is not below infinity (NaN is not), or all are -infinity.
struct LikeliestArgs {
  Rows logits;            // [T, vocabulary]
  int32_t* id = nullptr;  // [T]
};

}  // namespace tidemill
