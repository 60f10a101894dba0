// The parts of a Hugging Face tokenizer.json that this engine understands, as plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace tidemill {

struct TokenizerFile {
  struct Entry {
    int32_t id;
    std::string raw;
  };
  struct AddedToken {
    int32_t id;
    std::string spelling;
    bool special;
    bool normalized;  // matched after all tokens that are not
  };
  std::vector<Entry> vocabulary;                            // in no order
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::vector<AddedToken> added_tokens;
  std::vector<std::string> split_patterns;  // by pass
};

// Accepts byte-level BPE without a normalizer; everything else that would change token ids is
// refused rather than ignored. Not looked at: the post-processor, because the prompt encoding adds
// its own special tokens, and keys that this version does not know.
// Ids are 0 to 2^20 - 1; whether they agree with each other is for the caller to check.
// Errors: kTokenizer names the key.
Result<TokenizerFile> parse_tokenizer_file(std::string_view json);

}  // namespace tidemill
