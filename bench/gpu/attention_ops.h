// attend and index_select at the end of a sequence of `context` tokens (a multiple of 128).
#pragma once

#include <cstdint>
#include <vector>

#include "ops.h"

namespace tidemill::gpu {

std::vector<Case> attention_cases(int64_t context);

}  // namespace tidemill::gpu
