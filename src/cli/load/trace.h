// Arrivals of the past, to be played again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "text/json.h"

namespace tidemill::cli {

inline constexpr double kMaxTraceSeconds = 1e7;

struct TraceItem {
  double at_s = 0;
  // At most one of these three.
  std::optional<int64_t> prompt_tokens;
  std::optional<std::string> prompt;
  Json messages;  // null: none
  std::optional<int64_t> max_tokens;
  std::optional<int64_t> priority;
};

// JSON lines: {"t": seconds, "prompt_tokens"?: n, "prompt"?: text, "messages"?: [...],
// "max_tokens"?: n, "priority"?: n}. Times may be of any clock and in any order: the items come
// back sorted by them (equal ones as in the file), the first at 0, the last by kMaxTraceSeconds.
// Blank lines and unknown fields are skipped; "-" is standard input. Errors: those of read_input,
// and kRequest with file and line.
Result<std::vector<TraceItem>> read_trace(const std::filesystem::path& path);

}  // namespace tidemill::cli
