#include "sample/grammar_number.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace tidemill {
namespace {

// Every number of this many digits, with kFractionDigits behind the point and 9 before it, is a
// double that differs from its neighbours; larger bounds hold too, but not exclusively.
constexpr int64_t kMaxBound = 999'999'999'999'999;
constexpr int64_t kMaxExclusiveBound = 999'999'999;

Expr digits(size_t count) {
  return repeat(one_of({{'0', '9'}}), static_cast<int64_t>(count), static_cast<int64_t>(count));
}

Expr digit_between(char first, char last) {
  return one_of({{static_cast<char32_t>(first), static_cast<char32_t>(last)}});
}

// Digits of the same count that are not below (kBelow: not above) `limit`.
enum class Side { kNotBelow, kNotAbove };
Expr digits_beside(std::string_view limit, Side side) {
  if (limit.empty()) return text("");
  const std::string_view rest = limit.substr(1);
  std::vector<Expr> parts = {sequence({text(limit.substr(0, 1)), digits_beside(rest, side)})};
  const char digit = limit[0];
  if (side == Side::kNotBelow && digit < '9') {
    parts.push_back(
        sequence({digit_between(static_cast<char>(digit + 1), '9'), digits(rest.size())}));
  }
  if (side == Side::kNotAbove && digit > '0') {
    parts.push_back(
        sequence({digit_between('0', static_cast<char>(digit - 1)), digits(rest.size())}));
  }
  return choice(std::move(parts));
}

// Both limits have the same count of digits.
Expr digits_between(std::string_view first, std::string_view last) {
  if (first.empty()) return text("");
  const std::string_view first_rest = first.substr(1);
  const std::string_view last_rest = last.substr(1);
  if (first[0] == last[0]) {
    return sequence({text(first.substr(0, 1)), digits_between(first_rest, last_rest)});
  }
  std::vector<Expr> parts = {
      sequence({text(first.substr(0, 1)), digits_beside(first_rest, Side::kNotBelow)}),
      sequence({text(last.substr(0, 1)), digits_beside(last_rest, Side::kNotAbove)})};
  if (last[0] - first[0] > 1) {
    parts.push_back(
        sequence({digit_between(static_cast<char>(first[0] + 1), static_cast<char>(last[0] - 1)),
                  digits(first_rest.size())}));
  }
  return choice(std::move(parts));
}

// An interval of the numbers; open ends are those that do not belong to it.
struct Interval {
  int64_t first = -kMaxBound;
  int64_t last = kMaxBound;
  bool first_is_open = false;
  bool last_is_open = false;
};

Expr integers(const Interval& interval) {
  std::vector<Expr> parts;
  if (interval.last >= 0) {
    parts.push_back(integers_between(static_cast<uint64_t>(std::max<int64_t>(interval.first, 0)),
                                     static_cast<uint64_t>(interval.last)));
  }
  if (interval.first < 0) {
    const int64_t least = std::max<int64_t>(1, -interval.last);
    parts.push_back(
        sequence({text("-"), integers_between(static_cast<uint64_t>(least),
                                              static_cast<uint64_t>(-interval.first))}));
  }
  return choice(std::move(parts));
}

// The part of an interval of numbers >= 0: whole.fraction for each whole in it but the last, which
// stands alone or with zeros.
Expr numbers_from_zero(const Interval& interval) {
  const Expr any_digit = one_of({{'0', '9'}});
  const Expr fraction = sequence({text("."), repeat(any_digit, 1, kFractionDigits)});
  const Expr zeros = sequence({text("."), repeat(text("0"), 1, kFractionDigits)});
  std::vector<Expr> nonzero_digits;  // by how many zeros come first
  for (int64_t i = 0; i < kFractionDigits; ++i) {
    nonzero_digits.push_back(sequence({repeat(text("0"), i, i), one_of({{'1', '9'}}),
                                       repeat(any_digit, 0, kFractionDigits - 1 - i)}));
  }
  const Expr nonzero = sequence({text("."), choice(std::move(nonzero_digits))});
  std::vector<Expr> parts;
  int64_t whole = interval.first;
  if (interval.first_is_open && whole < interval.last) {
    parts.push_back(sequence({text(std::to_string(whole)), nonzero}));
    ++whole;
  }
  if (whole < interval.last) {
    parts.push_back(sequence(
        {integers_between(static_cast<uint64_t>(whole), static_cast<uint64_t>(interval.last - 1)),
         optional(fraction)}));
  }
  const bool last_belongs =
      !interval.last_is_open && !(interval.first_is_open && interval.first == interval.last);
  if (last_belongs) {
    parts.push_back(sequence({text(std::to_string(interval.last)), optional(zeros)}));
  }
  return choice(std::move(parts));
}

Expr numbers(const Interval& interval) {
  std::vector<Expr> parts;
  if (interval.last >= 0) {
    Interval part = interval;
    if (part.first < 0) part.first = 0, part.first_is_open = false;
    parts.push_back(numbers_from_zero(part));
  }
  if (interval.first < 0) {
    // Mirrored; 0 is written without a sign.
    Interval part{-interval.last, -interval.first, interval.last_is_open, interval.first_is_open};
    if (part.first <= 0) part.first = 0, part.first_is_open = true;
    parts.push_back(sequence({text("-"), numbers_from_zero(part)}));
  }
  return choice(std::move(parts));
}

}  // namespace

Expr integers_between(uint64_t first, uint64_t last) {
  const std::string low = std::to_string(first);
  const std::string high = std::to_string(last);
  if (low.size() == high.size()) return digits_between(low, high);
  // By count of digits: that of the first, those between, that of the last.
  std::vector<Expr> parts = {digits_between(low, std::string(low.size(), '9'))};
  const bool last_is_full = high.find_first_not_of('9') == std::string::npos;
  const size_t longest = last_is_full ? high.size() : high.size() - 1;
  if (longest > low.size()) {
    parts.push_back(sequence(
        {one_of({{'1', '9'}}), repeat(one_of({{'0', '9'}}), static_cast<int64_t>(low.size()),
                                      static_cast<int64_t>(longest) - 1)}));
  }
  if (!last_is_full) {
    std::string least(high.size(), '0');
    least[0] = '1';
    parts.push_back(digits_between(least, high));
  }
  return choice(std::move(parts));
}

Result<std::optional<Expr>> bounded_number(const Json& schema, const std::string& pointer,
                                           bool is_integer) {
  Interval interval;
  bool is_bounded = false;
  for (const char* keyword : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
    if (!schema.contains(keyword)) continue;
    is_bounded = true;
    const std::string_view name = keyword;
    const bool is_minimum = name.ends_with("inimum");
    const bool is_open = name.starts_with("exclusive");
    const Json& value = schema.at(keyword);
    const double bound = value.is_number() ? value.get<double>() : NAN;
    const auto limit = static_cast<double>(is_integer || !is_open ? kMaxBound : kMaxExclusiveBound);
    if (!(std::abs(bound) <= limit)) {
      return fail(ErrorCode::kRequest, "JSON schema, {}: \"{}\" is a number from {} to {}", pointer,
                  keyword, -limit, limit);
    }
    double whole = is_minimum ? std::ceil(bound) : std::floor(bound);
    if (whole != bound && !is_integer) {
      return fail(ErrorCode::kRequest,
                  "JSON schema, {}: \"{}\" of {} is supported for integers only; numbers need a "
                  "whole bound",
                  pointer, keyword, bound);
    }
    // Of integers, an open end is the next one's closed end.
    const bool moves = is_integer && is_open && whole == bound;
    if (moves) whole += is_minimum ? 1 : -1;
    const bool stays_open = is_open && !is_integer;
    const auto end = static_cast<int64_t>(whole);
    if (is_minimum && (end > interval.first || (end == interval.first && stays_open))) {
      interval.first = end;
      interval.first_is_open = stays_open;
    }
    if (!is_minimum && (end < interval.last || (end == interval.last && stays_open))) {
      interval.last = end;
      interval.last_is_open = stays_open;
    }
  }
  if (!is_bounded) return std::nullopt;
  const bool is_empty =
      interval.first > interval.last ||
      (interval.first == interval.last && (interval.first_is_open || interval.last_is_open));
  if (is_empty) {
    return fail(ErrorCode::kRequest, "JSON schema, {}: the bounds leave no number", pointer);
  }
  return is_integer ? integers(interval) : numbers(interval);
}

}  // namespace tidemill
