// The two forms of bounded replay, mask and compact, against each other and against what they mean.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/check/report.h"
#include "engine/model_runner.h"
#include "forward/step_input.h"

namespace tidemill::cli {

// Compares one step's input in both forms: metadata of the tail's rows, the window keys that each
// sees and where it reads them, visible entries, store slots. `where` names the step.
void compare_forms(const StateLayout& layout, const StepInput& compact, const StepInput& mask,
                   const std::function<std::string()>& where, CheckReport& report);

// Level 1, from config.json alone: inputs of the steps of a sweep over prompt lengths, hits, keep
// lengths and chunk borders, with decode and undone drafts after the prompt. Besides comparing the
// forms it follows every ring row and entry: what is read was written before, and a hit's entries
// are never written. Errors: those of Topology, StateLayout and EngramHash.
Result<CheckReport> check_replay_inputs(const Config& config);

struct ReplayValues {
  int64_t keep = 0;                       // tokens that the decoder layers see
  std::vector<std::vector<int32_t>> ids;  // each a prompt and kReplayDecode tokens after it
};
inline constexpr int64_t kReplayDecode = 32;  // teacher-forced tokens after a prompt

// Shortest prompt that level 2 can use: a hit longer than the window, and the decoder's tail.
int64_t smallest_replayed_prompt(const StateLayout& layout, int64_t keep);

// Level 2: both forms on the same teacher-forced tokens, after a prefix hit without windows and
// without a hit; every logit, log-probability and draft confidence must be equal. Notes how far
// log-probabilities are from the exact pass. Errors: those of Forward and StatePool; kInternal
// when the prefix cache gives another hit than the check is about.
Result<CheckReport> check_replay_values(ModelRunner& runner, const ReplayValues& values);

}  // namespace tidemill::cli
