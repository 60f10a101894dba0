// JSON of requests: read within limits, written as Python writes it.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/result.h"

namespace tidemill {

// Key order is part of the prompt.
using Json = nlohmann::ordered_json;

// Deepest nesting of arrays and objects that a request may have. Recursion over a Json, also the
// library's own copy and dump, is bounded by it.
inline constexpr int kMaxJsonDepth = 128;

// Reads one JSON text. Linear in its size whatever it holds; of a repeated key the last value
// counts, at the place of the first. An integer that 64 bits cannot hold keeps its digits as a
// binary value, so it is no number to any reader but python_json.
// Error kRequest: malformed, invalid UTF-8, a number beyond double, deeper than kMaxJsonDepth.
Result<Json> parse_json(std::string_view text);

// For values that did not come from parse_json.
bool is_deeper_than(const Json& value, int depth);

// json.dumps(value, ensure_ascii=False) of Python: separators ", " and ": ", shortest floats (1.5,
// 1000.0, 1e+16). The value is at most kMaxJsonDepth deep.
std::string python_json(const Json& value);

// Appends the inside of a JSON string, without the quotes.
void append_json_escaped(std::string& out, std::string_view text);

}  // namespace tidemill
