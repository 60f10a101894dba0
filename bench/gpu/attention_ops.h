// attend and index_select, 128k tokens deep in a sequence.
#pragma once

#include <vector>

#include "ops.h"

namespace tidemill::gpu {

std::vector<Case> attention_cases();

}  // namespace tidemill::gpu
