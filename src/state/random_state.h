// State that nobody computed, for measurements with long contexts.
#pragma once

#include "state/state_pool.h"

namespace tidemill {

// Fills all blocks and slots with random rows, valid in their formats: values near 1, no NaN. Rows
// of as many blocks as a prompt of `context` tokens takes differ (1 GiB of them at most), others
// repeat them. Nothing may be in use. What follows from such rows means nothing; it takes the time
// that real ones take.
void fill_with_random_rows(StatePool& pool, int64_t context);

}  // namespace tidemill
