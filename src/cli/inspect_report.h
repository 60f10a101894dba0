// What a checkpoint consists of and what it needs, as numbers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/model.h"
#include "state/layout.h"

namespace tidemill::cli {

// A group of tensors. Scales count as bytes, not as parameters.
struct TensorKind {
  std::string_view name;
  int64_t tensors = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;
  int64_t read_bytes = 0;  // of these, what one decoded token of one sequence reads
};

struct InspectReport {
  std::vector<TensorKind> kinds;  // in the order of the pass
  TensorKind total;
  int64_t state_token_bytes = 0;     // cache of one token, all sources
  int64_t state_sequence_bytes = 0;  // rings and half-open pairs of one sequence
  // Cache that one decoded token reads: window rows and selected entries, up to
  // `state_read_bytes`; and every index key before it.
  int64_t state_read_bytes = 0;
  int64_t index_key_bytes_per_token = 0;
};

// "layers.3.ffn.experts.7.w1.scale" -> "routed experts". Unknown names are "other".
std::string_view kind_of_tensor(std::string_view name);

InspectReport inspect_model(const Model& model, const StateLayout& layout);

// "2 GiB" of memory -> tokens of context that fit beside the weights for `sequences` sequences in
// all; negative when the weights alone do not fit.
int64_t tokens_that_fit(const InspectReport& report, int64_t memory_bytes, int64_t sequences);

}  // namespace tidemill::cli
