#include "cli/load/trace.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "cli/bench/workload.h"
#include "cli/input.h"

namespace tidemill::cli {
namespace {

constexpr int64_t kMaxPriority = std::numeric_limits<int32_t>::max();

Result<std::optional<int64_t>> read_whole(const Json& json, const char* key, int64_t least,
                                          int64_t most) {
  if (!json.contains(key)) return std::nullopt;
  const Json& value = json[key];
  if (value.is_number_integer() && value >= least && value <= most) return value.get<int64_t>();
  return fail(ErrorCode::kRequest, "\"{}\" is not a whole number from {} to {}", key, least, most);
}

Result<TraceItem> read_item(std::string_view line) {
  TRY(const Json json, parse_json(line));
  if (!json.is_object()) return fail(ErrorCode::kRequest, "is not a JSON object");
  TraceItem item;
  const bool timed = json.contains("t") && json["t"].is_number();
  if (!timed) return fail(ErrorCode::kRequest, "has no \"t\", the time in seconds");
  item.at_s = json["t"].get<double>();
  const int given =
      json.contains("prompt_tokens") + json.contains("prompt") + json.contains("messages");
  if (given > 1) {
    return fail(ErrorCode::kRequest, "has {} of \"prompt_tokens\", \"prompt\", \"messages\"; one",
                given);
  }
  TRY(item.prompt_tokens, read_whole(json, "prompt_tokens", 1, kMaxBenchTokens));
  TRY(item.max_tokens, read_whole(json, "max_tokens", 1, kMaxBenchTokens));
  TRY(item.priority, read_whole(json, "priority", -kMaxPriority, kMaxPriority));
  if (json.contains("prompt")) {
    if (!json["prompt"].is_string()) return fail(ErrorCode::kRequest, "\"prompt\" is not a string");
    item.prompt = json["prompt"].get<std::string>();
  }
  if (json.contains("messages")) {
    item.messages = json["messages"];
    if (!item.messages.is_array() || item.messages.empty()) {
      return fail(ErrorCode::kRequest, "\"messages\" is not an array with messages");
    }
  }
  return item;
}

}  // namespace

Result<std::vector<TraceItem>> read_trace(const std::filesystem::path& path) {
  TRY(const std::string text, read_input(path));
  std::vector<TraceItem> items;
  std::string_view rest = text;
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto item = read_item(line);
    if (!item) {
      return fail(item.error().code, "{}:{}: {}", input_name(path), number, item.error().message);
    }
    if (static_cast<int64_t>(items.size()) == kMaxBenchRequests) {
      return fail(ErrorCode::kRequest, "{}:{}: more than {} requests", input_name(path), number,
                  kMaxBenchRequests);
    }
    items.push_back(std::move(*item));
  }
  if (items.empty()) return fail(ErrorCode::kRequest, "{} holds no requests", input_name(path));
  const auto earlier = [](const TraceItem& a, const TraceItem& b) { return a.at_s < b.at_s; };
  std::stable_sort(items.begin(), items.end(), earlier);
  const double first = items.front().at_s;
  for (TraceItem& item : items) item.at_s -= first;
  // Longer than any run, or two clocks mixed.
  if (items.back().at_s > kMaxTraceSeconds) {
    return fail(ErrorCode::kRequest, "{}: its times span {:g} s, more than {:g}; \"t\" is seconds",
                input_name(path), items.back().at_s, kMaxTraceSeconds);
  }
  return items;
}

}  // namespace tidemill::cli
