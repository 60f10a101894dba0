// Prompt ids to answer ids, one sequence, with or without drafts.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/model_runner.h"
#include "sample/penalties.h"
#include "sample/sampler.h"
#include "tidemill/sampling.h"

namespace tidemill::cli {

struct GenerateOptions {
  SamplingParams sampling;
  int64_t max_tokens = 0;  // of the answer; the context limits it too
  int64_t drafts = 0;      // tokens drafted per step, 0..max_drafts()
  // Polled between steps; true ends the answer (kCancelled). Null: never.
  const std::atomic<bool>* cancel = nullptr;
};

enum class FinishReason { kStop, kLength, kCancelled };
std::string_view to_string(FinishReason reason);

struct Generation {
  std::vector<int32_t> ids;  // the end-of-sequence token is not among them
  FinishReason finish = FinishReason::kLength;
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;      // of the prompt, found in the sequence from the turn before
  double prefill_seconds = 0;     // up to the first token
  double decode_seconds = 0;      // all later ones
  int64_t steps = 0;              // target passes after the prefill
  std::vector<int64_t> proposed;  // drafts verified, by position in the step
  std::vector<int64_t> accepted;
};

// Longest draft that a model of this configuration makes; 0 without a drafter.
int64_t max_drafts(const Config& config);

// Keeps its sequence between calls, so that a conversation does not process its history again. Not
// thread safe. The engine must outlive it.
class Generator {
 public:
  explicit Generator(ModelRunner& engine);
  ~Generator();
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  // Calls emit(id) for every token of the answer as it is decided. Drafts cannot change the tokens:
  // verification uses the noise of each position.
  // Errors: kContextLength when the prompt leaves no room, and those of the steps.
  Result<Generation> generate(std::span<const int32_t> prompt, const GenerateOptions& options,
                              const std::function<void(int32_t)>& emit);

 private:
  struct Answer;
  Status prefill(std::span<const int32_t> prompt, const GenerateOptions& options, Answer& answer);
  Status step(const GenerateOptions& options, Answer& answer);
  Result<std::vector<int32_t>> draft(const GenerateOptions& options, int32_t anchor, int64_t count);
  Result<int64_t> prepare(std::span<const int32_t> prompt);
  void accept(int32_t id, const GenerateOptions& options, Answer& answer);
  bool is_end(int32_t id) const;

  ModelRunner& engine_;
  Sampler sampler_;
  std::vector<int32_t> ends_;  // end-of-sequence ids
  Sequence sequence_;
  TokenHistory history_;
};

}  // namespace tidemill::cli
