// Grammars that clients write.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace xgrammar {
class Grammar;
}

namespace tidemill {

// The grammar with its character classes written out, as xgrammar reads classes otherwise than
// their author means (ebnf_class). Refuses what cannot be meant, or could not be read in bounded
// space: U+0000 and invalid UTF-8; nesting deeper than `max_depth`; functions (Token(1), ...),
// which reach special tokens by number; look-ahead. The rest of the syntax is left to xgrammar.
// Error kRequest with the line.
Result<std::string> checked_ebnf(std::string_view grammar, int max_depth);

// kRequest, with its name, when a rule of the grammar (as xgrammar has read it) matches no text of
// finite length: an answer that came to it could not be completed.
Status check_ends(const xgrammar::Grammar& grammar);

}  // namespace tidemill
