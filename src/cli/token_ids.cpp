#include "cli/token_ids.h"

namespace tidemill::cli {

Result<std::vector<int32_t>> read_token_ids(const Json& value, const Tokenizer& tokenizer) {
  if (!value.is_array()) return fail(ErrorCode::kRequest, "not a JSON array of token ids");
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const Json& item : value) {
    if (!item.is_number_integer()) {
      return fail(ErrorCode::kRequest, "element {} is not a token id", ids.size());
    }
    const bool fits = !(item.is_number_unsigned() && item.get<uint64_t>() > INT32_MAX) &&
                      item.get<int64_t>() >= 0 && item.get<int64_t>() <= INT32_MAX;
    if (!fits || !tokenizer.has(item.get<int32_t>())) {
      return fail(ErrorCode::kTokenOutOfRange,
                  "token id {} (element {}) is not in the vocabulary of {}", item.dump(),
                  ids.size(), tokenizer.size());
    }
    ids.push_back(item.get<int32_t>());
  }
  return ids;
}

}  // namespace tidemill::cli
