// From samples to the numbers of a report.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tidemill::cli {

// The value below which the share `p` (0 to 1) of the samples lies, interpolated linearly between
// the two nearest ones (numpy's default). `sorted`: ascending. 0 without samples.
double percentile(std::span<const double> sorted, double p);

struct Percentiles {
  int64_t count = 0;
  double p50 = 0, p90 = 0, p99 = 0, most = 0;
};
Percentiles percentiles(std::vector<double> samples);

// Of one number measured several times.
struct Spread {
  int64_t count = 0;
  double median = 0, least = 0, most = 0;
};
Spread spread(std::vector<double> samples);

}  // namespace tidemill::cli
