// Numbers between bounds as grammars.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "sample/grammar_expr.h"
#include "text/json.h"

namespace tidemill {

// JSON text of the numbers within the minimum, maximum, exclusiveMinimum and exclusiveMaximum of a
// schema; nullopt when it has none of them. Numbers that are not integers are written without
// exponent, with at most kFractionDigits digits behind the point.
//
// Error kRequest with `pointer` and the keyword: a bound that is no number, that is no whole number
// beyond it in the case of a number (0.5), or of more than 15 digits; bounds that leave nothing.
inline constexpr int64_t kFractionDigits = 6;
Result<std::optional<Expr>> bounded_number(const Json& schema, const std::string& pointer,
                                           bool is_integer);

// The integers from `first` to `last`, 0 <= first <= last, without leading zeros.
Expr integers_between(uint64_t first, uint64_t last);

}  // namespace tidemill
