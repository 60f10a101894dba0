// Prompts of about a given number of tokens, of plain words: a server of another model can be asked
// without its tokenizer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cli/bench/workload.h"

namespace tidemill::cli {

// "LOW:HIGH" (both included), "N", or a form of LengthDistribution. Error kInvalidArgument names
// `flag`.
Result<LengthDistribution> parse_lengths(std::string_view flag, std::string_view text);

struct PromptShape {
  LengthDistribution prompt;  // tokens, about: common tokenizers have most of the words as one
  LengthDistribution output;
  // Prompts begin with one of `prefixes` common texts, chosen evenly: with `prefix_tokens` of it
  // in front of their own length, or with this share of their length.
  int64_t prefixes = 1;
  int64_t prefix_tokens = 0;
  double prefix_share = 0;
  uint64_t seed = 0;
};

struct DrawnLengths {
  int64_t prompt_tokens = 1;
  int64_t output_tokens = 1;
};

// Of one request. Depend on the shape and `index` only, not on what was drawn before.
DrawnLengths draw_lengths(const PromptShape& shape, uint64_t index);
// A text of about `tokens` tokens (and prefix_tokens).
std::string make_prompt(const PromptShape& shape, uint64_t index, int64_t tokens);

}  // namespace tidemill::cli
