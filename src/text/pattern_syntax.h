// Split patterns of tokenizer.json (Oniguruma's syntax) in the syntax and tables of PCRE2.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace tidemill {

// The subset in which both libraries agree, with two repairs: \s and \S mean Unicode White_Space
// (PCRE2's \s also takes U+180E), and \p{L}, \p{M}, \p{N}, \p{P}, \p{S} include what Unicode added
// up to version 16.
// Errors: kTokenizer names the construct that is outside the subset. A result may still be refused
// by PCRE2's compiler (unbalanced brackets, ...).
Result<std::string> pcre2_pattern(std::string_view pattern);

}  // namespace tidemill
