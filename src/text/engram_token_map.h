// Token ids to the smaller set of ids that Engram's hashes are taken over.
#pragma once

#include <cstdint>
#include <vector>

#include "text/tokenizer.h"

namespace tidemill {

struct EngramTokenMap {
  std::vector<int32_t> ids;  // [tokenizer.size()], each 0 to distinct - 1
  int32_t distinct = 0;
};

// Tokens whose texts are equal after normalize_for_engram() share an id; ids count keys in the
// order of their first token. The key is the text itself where the normal form is empty, and the
// vocabulary's raw string where the token is not whole UTF-8 or holds U+FFFD.
// 129,280 tokens of the released model give 99,092 ids.
EngramTokenMap engram_token_map(const Tokenizer& tokenizer);

}  // namespace tidemill
