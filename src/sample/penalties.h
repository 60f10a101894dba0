// Changes to single logits: the request's bias and penalties for tokens already seen.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>

#include "tidemill/sampling.h"

namespace tidemill {

// How often each token of one sequence occurs. Needed only for requests whose parameters
// use_history(); for the others an empty one will do. Ids are not checked: those outside the
// vocabulary have no effect. Not thread safe.
class TokenHistory {
 public:
  struct Counts {
    bool in_prompt = false;
    int64_t output = 0;
  };

  void add_prompt(std::span<const int32_t> tokens) {
    for (const int32_t token : tokens) counts_[token].in_prompt = true;
  }
  void add_output(int32_t token) { ++counts_[token].output; }
  // Undoes one add_output(token). The entry stays, so a draft that is tried and taken back
  // allocates once at most.
  void remove_output(int32_t token) { --counts_[token].output; }

  const std::unordered_map<int32_t, Counts>& counts() const { return counts_; }

 private:
  std::unordered_map<int32_t, Counts> counts_;
};

// Are there parameters that edit_logits would act on?
bool edits_logits(const SamplingParams& params);

// Adds the bias, then applies the repetition, frequency and presence penalties, in place.
void edit_logits(std::span<float> logits, const SamplingParams& params,
                 const TokenHistory& history);

}  // namespace tidemill
