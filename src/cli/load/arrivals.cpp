#include "cli/load/arrivals.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cli/bench/workload.h"

namespace tidemill::cli {
namespace {

// `most`, or fewer if that many certainly reach beyond `seconds`: twenty standard deviations.
int64_t enough_arrivals(double per_second, int64_t most, double seconds) {
  const double expected = per_second * seconds;
  const double bound = expected + 20 * std::sqrt(expected) + 100;
  return bound < static_cast<double>(most) ? static_cast<int64_t>(bound) : most;
}

double ks_distance(std::vector<double> gaps, double per_second) {
  std::sort(gaps.begin(), gaps.end());
  const auto n = static_cast<double>(gaps.size());
  double distance = 0;
  for (size_t i = 0; i < gaps.size(); ++i) {
    const double expected = -std::expm1(-per_second * gaps[i]);
    const auto below = static_cast<double>(i);
    distance = std::max({distance, expected - below / n, (below + 1) / n - expected});
  }
  return distance;
}

// Of Kolmogorov's distribution at one in a thousand, with Stephens' correction for short series.
double ks_limit(int64_t count) {
  constexpr double kOneInThousand = 1.9495;
  const double root = std::sqrt(static_cast<double>(count));
  return kOneInThousand / (root + 0.12 + 0.11 / root);
}

}  // namespace

std::string_view to_string(ArrivalProcess process) {
  switch (process) {
    case ArrivalProcess::kPoisson:
      return "poisson";
    case ArrivalProcess::kConstant:
      return "constant";
    case ArrivalProcess::kTrace:
      return "trace";
  }
  return "?";
}

std::vector<double> arrival_times(ArrivalProcess process, double per_second, int64_t most,
                                  double seconds, uint64_t seed) {
  const int64_t count = enough_arrivals(per_second, most, seconds);
  std::vector<double> times;
  if (process == ArrivalProcess::kPoisson) {
    times = poisson_arrivals(count, per_second, seed);
  } else {
    for (int64_t i = 0; i < count; ++i) times.push_back(static_cast<double>(i) / per_second);
  }
  times.erase(std::lower_bound(times.begin(), times.end(), seconds), times.end());
  return times;
}

GapCheck check_gaps(std::span<const double> times, ArrivalProcess process, double per_second) {
  GapCheck check;
  std::vector<double> gaps;
  for (size_t i = 1; i < times.size(); ++i) gaps.push_back(times[i] - times[i - 1]);
  if (gaps.empty()) return check;
  check.count = static_cast<int64_t>(gaps.size());
  const auto n = static_cast<double>(gaps.size());
  check.mean_s = (times.back() - times.front()) / n;
  double squares = 0;
  for (const double gap : gaps) squares += (gap - check.mean_s) * (gap - check.mean_s);
  if (check.mean_s > 0) check.variation = std::sqrt(squares / n) / check.mean_s;
  if (process == ArrivalProcess::kTrace) return check;
  const bool enough = check.count >= kFewestGaps;
  if (process == ArrivalProcess::kConstant) {
    const bool mean_fits = std::abs(check.mean_s * per_second - 1) <= 0.01;
    check.fits = !enough || (mean_fits && check.variation < 0.05);
    return check;
  }
  check.distance = ks_distance(std::move(gaps), per_second);
  check.limit = ks_limit(check.count);
  check.fits = !enough || check.distance <= check.limit;
  return check;
}

}  // namespace tidemill::cli
