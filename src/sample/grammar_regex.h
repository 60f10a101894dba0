// Regular expressions as grammars: the part of ECMA-262 (which JSON Schema refers to) that a
// context-free grammar can express.
#pragma once

#include <string_view>

#include "base/result.h"
#include "sample/grammar_expr.h"

namespace tidemill {

// Where ^ and $ do not hold it, the match may begin and end: at the ends of the text (an output of
// this form), or anywhere in it (JSON Schema's "pattern").
enum class RegexMatch { kWhole, kSearch };

// Supported: literals, ., classes, \d \w \s and their complements, groups (capturing, named or
// not), alternation, greedy and lazy quantifiers, ^ and $ at the ends of an alternative that stands
// in no group. `.` is any character but line ends; \d \w are ASCII.
//
// Error kRequest with the position (1 = first character): syntax errors, groups nested deeper than
// `max_depth`, and what is not regular or not supported: look-around, back-references, \b, \p,
// flags, possessive quantifiers.
Result<Expr> regex_to_expr(std::string_view regex, RegexMatch match, int max_depth);

// The characters of one class, "[...]", with \UHHHHHHHH beside the other escapes.
Result<CharSet> character_class(std::string_view regex);

}  // namespace tidemill
