// Inputs of score and draft: token ids, or text that becomes token ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/result.h"
#include "model/model.h"

namespace tidemill::cli {

// Reads either one JSON array of ids, or JSON lines, each an array of ids, {"tokens": [ids]} or
// {"text": "..."}. Text is tokenised plainly (no special tokens) after a beginning-of-sequence
// token. "-" is standard input. Every list has 1 to max_position_embeddings ids of the vocabulary.
// Errors name the file and the line.
Result<std::vector<std::vector<int32_t>>> read_token_inputs(const std::filesystem::path& path,
                                                            const Tokenizer& tokenizer,
                                                            const Config& config);

}  // namespace tidemill::cli
