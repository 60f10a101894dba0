// From the public options to a loaded model and the options of its loop. Private to src/engine.
#pragma once

#include <functional>
#include <memory>

#include "engine/model_runner.h"
#include "engine/step_loop.h"
#include "tidemill/engine.h"

namespace tidemill {

// The options with numbers for `sequences` and `max_step_tokens` where those are 0 (chosen).
Options with_sizes(Options options);
// Errors: kInvalidArgument (option, value, range), kConflictingOptions (both names), those of
// loading.
Result<std::unique_ptr<ModelRunner>> load_runner(const Options& options,
                                                 std::function<void(double)> progress);
// Also measures what a step costs, when drafts depend on it.
Result<LoopOptions> loop_options(const Options& options, ModelRunner& runner);
ModelInfo model_info(ModelRunner& runner, const StepLoop& loop);

}  // namespace tidemill
