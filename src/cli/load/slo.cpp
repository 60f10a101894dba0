#include "cli/load/slo.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace tidemill::cli {
namespace {

struct Limit {
  std::string_view name;
  std::optional<double> Slo::*value;
};
constexpr std::array kLimits = {Limit{"ttft", &Slo::ttft_ms}, Limit{"itl", &Slo::itl_ms},
                                Limit{"tpot", &Slo::tpot_ms}, Limit{"stall", &Slo::stall_ms},
                                Limit{"e2e", &Slo::e2e_ms}};

// Milliseconds.
std::optional<double> parse_time(std::string_view text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [unit, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (error != std::errc()) return std::nullopt;
  const std::string_view name(unit, static_cast<size_t>(end - unit));
  const double factor = name == "ms" ? 1.0 : name == "s" ? 1e3 : name == "us" ? 1e-3 : 0.0;
  const double ms = value * factor;
  if (!(ms > 0) || !std::isfinite(ms)) return std::nullopt;
  return ms;
}

}  // namespace

bool Slo::is_met_by(const LoadRecord& record) const {
  if (!record.ok()) return false;
  if (ttft_ms && (record.chunks_s.empty() || record.ttft_ms() > *ttft_ms)) return false;
  if (itl_ms && record.mean_gap_ms() > *itl_ms) return false;
  if (tpot_ms && record.tpot_ms() > *tpot_ms) return false;
  if (stall_ms && record.longest_gap_ms() > *stall_ms) return false;
  return !e2e_ms || record.e2e_ms() <= *e2e_ms;
}

std::string Slo::text() const {
  std::string out;
  for (const Limit& limit : kLimits) {
    const std::optional<double>& value = this->*limit.value;
    if (value) out += fmt::format("{}{}={:g}ms", out.empty() ? "" : ",", limit.name, *value);
  }
  return out;
}

Result<Slo> parse_slo(std::string_view text) {
  Slo slo;
  for (bool more = true; more;) {
    const size_t end = text.find(',');
    more = end != std::string_view::npos;
    const std::string_view part = text.substr(0, end);
    if (more) text.remove_prefix(end + 1);
    const size_t equals = std::min(part.find('='), part.size());
    const auto limit = std::find_if(kLimits.begin(), kLimits.end(), [&](const Limit& known) {
      return known.name == part.substr(0, equals);
    });
    if (limit == kLimits.end()) {
      return fail(ErrorCode::kInvalidArgument,
                  "--slo: \"{}\" is not one of ttft, itl, tpot, stall, e2e with =TIME", part);
    }
    const auto ms = parse_time(part.substr(std::min(equals + 1, part.size())));
    if (!ms) {
      return fail(ErrorCode::kInvalidArgument,
                  "--slo: \"{}\" needs a time above 0 with its unit, such as {}=500ms or {}=2s",
                  part, limit->name, limit->name);
    }
    std::optional<double>& value = slo.*limit->value;
    if (value) return fail(ErrorCode::kInvalidArgument, "--slo: {} is there twice", limit->name);
    value = ms;
  }
  return slo;
}

}  // namespace tidemill::cli
