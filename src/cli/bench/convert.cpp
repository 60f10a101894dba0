#include "cli/bench/convert.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "cli/input.h"
#include "text/json.h"

namespace tidemill::cli {
namespace {

// "off" is the fixed length 0.
std::optional<int64_t> fixed_length(std::string_view policy) {
  if (policy == "off") return 0;
  constexpr std::string_view kFixed = "fixed:";
  if (!policy.starts_with(kFixed)) return std::nullopt;
  const std::string_view digits = policy.substr(kFixed.size());
  int64_t length = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), length);
  const bool whole = error == std::errc() && end == digits.data() + digits.size();
  if (!whole || length < 0) return std::nullopt;
  return length;
}

template <typename T>
Result<T> field(const Json& json, const char* key) {
  if (json.contains(key)) {
    const Json& value = json[key];
    if constexpr (std::is_same_v<T, std::string>) {
      if (value.is_string()) return value.get<std::string>();
    } else if (value.is_number()) {
      return value.get<T>();
    }
  }
  return fail(ErrorCode::kRequest, "a cell without a usable \"{}\"", key);
}

// Nothing: another kind of record, another policy, or a cell too short to have a rate.
Result<std::optional<ConvertedCell>> convert(std::string_view line, double acceptance,
                                             std::string_view drafts) {
  TRY(const Json json, parse_json(line));
  if (!json.is_object() || !json.contains("record")) {
    return fail(ErrorCode::kRequest, "not a record of tidemill bench --records");
  }
  if (json["record"] != "cell" || !json.contains("kind") || json["kind"] != "decode") {
    return std::nullopt;
  }
  TRY(const std::string policy, field<std::string>(json, "drafts"));
  if (!drafts.empty() && policy != drafts) return std::nullopt;
  const auto length = fixed_length(policy);
  if (!length) {
    return fail(ErrorCode::kInvalidArgument,
                "recorded with drafts \"{}\", whose length follows the acceptance: tau = 1 + N a "
                "holds for fixed:N only (choose such cells with --draft fixed:N, or record some)",
                policy);
  }
  ConvertedCell cell{.length = *length};
  TRY(cell.concurrency, field<int64_t>(json, "concurrency"));
  TRY(cell.context, field<int64_t>(json, "prompt_tokens_each"));
  if (!json.contains("tokens_per_second")) {
    return fail(ErrorCode::kRequest, "a cell without a usable \"tokens_per_second\"");
  }
  if (json["tokens_per_second"].is_null()) return std::nullopt;
  TRY(cell.recorded_rate, field<double>(json["tokens_per_second"], "median"));
  TRY(cell.recorded_tau, field<double>(json, "tokens_per_step"));
  if (!(cell.recorded_tau >= 1) || !(cell.recorded_rate > 0)) return std::nullopt;
  if (*length > 0) {
    cell.recorded_acceptance = (cell.recorded_tau - 1) / static_cast<double>(*length);
  }
  cell.tau = tokens_per_step(*length, acceptance);
  cell.rate = cell.recorded_rate * cell.tau / cell.recorded_tau;
  return cell;
}

}  // namespace

Result<std::vector<ConvertedCell>> convert_records(const std::filesystem::path& path,
                                                   double acceptance, std::string_view drafts) {
  TRY(const std::string text, read_input(path));
  std::vector<ConvertedCell> cells;
  std::string_view rest = text;
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto cell = convert(line, acceptance, drafts);
    if (!cell) {
      return fail(cell.error().code, "{}:{}: {}", input_name(path), number, cell.error().message);
    }
    if (!*cell) continue;
    (*cell)->line = number;
    cells.push_back(**cell);
  }
  if (cells.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "{} holds no decode cells{}{}; record some with tidemill bench --sweep decode "
                "--draft fixed:N --records FILE",
                input_name(path), drafts.empty() ? "" : " of ", drafts);
  }
  return cells;
}

}  // namespace tidemill::cli
