// Token ids as JSON, checked against a vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/json.h"
#include "text/tokenizer.h"

namespace tidemill::cli {

// Errors: kRequest (not an array of integers), kTokenOutOfRange (the id, its place, the size).
Result<std::vector<int32_t>> read_token_ids(const Json& value, const Tokenizer& tokenizer);

}  // namespace tidemill::cli
