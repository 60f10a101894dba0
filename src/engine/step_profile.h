// What a decode step costs on this device, by its rows: the seed of the draft scheduler's costs.
#pragma once

#include "base/result.h"
#include "engine/model_runner.h"
#include "sched/draft_cost.h"

namespace tidemill {

// Runs steps of 1, 2, 4, .. rows over as many sequences as there are slots, each with up to a draft
// block, a few times each, on short contexts. Milliseconds to seconds; the pool must be unused and
// is so again afterwards. Errors: those of Forward.
Result<CostCurve> profile_steps(ModelRunner& runner);

}  // namespace tidemill
