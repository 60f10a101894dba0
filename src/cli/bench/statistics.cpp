#include "cli/bench/statistics.h"

#include <algorithm>
#include <cmath>

namespace tidemill::cli {

double percentile(std::span<const double> sorted, double p) {
  if (sorted.empty()) return 0;
  const double place = std::clamp(p, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(place);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return std::lerp(sorted[low], sorted[high], place - static_cast<double>(low));
}

Percentiles percentiles(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  return {.count = static_cast<int64_t>(samples.size()),
          .p50 = percentile(samples, 0.5),
          .p90 = percentile(samples, 0.9),
          .p99 = percentile(samples, 0.99),
          .most = samples.back()};
}

Spread spread(std::vector<double> samples) {
  if (samples.empty()) return {};
  std::sort(samples.begin(), samples.end());
  return {.count = static_cast<int64_t>(samples.size()),
          .median = percentile(samples, 0.5),
          .least = samples.front(),
          .most = samples.back()};
}

}  // namespace tidemill::cli
