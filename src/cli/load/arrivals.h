// When requests arrive in an open loop, and whether a series of times looks as it should.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace tidemill::cli {

enum class ArrivalProcess {
  kPoisson,   // gaps are independent and exponential
  kConstant,  // gaps are equal
  kTrace,     // times of a file
};
std::string_view to_string(ArrivalProcess process);

// Seconds from 0, ascending: the first `most` arrivals of the process that lie before `seconds`
// (infinity: no limit). The same seed gives the same times, and a longer run begins with a shorter
// one's. kPoisson and kConstant; `most` >= 1.
std::vector<double> arrival_times(ArrivalProcess process, double per_second, int64_t most,
                                  double seconds, uint64_t seed);

// The gaps of a series against the process that it should be.
struct GapCheck {
  int64_t count = 0;     // gaps
  double mean_s = 0;     // 1 / rate
  double variation = 0;  // standard deviation over mean: 1 if exponential, 0 if equal
  // Kolmogorov-Smirnov: the largest distance between the distribution of the gaps and
  // 1 - exp(-rate t), and what it stays below in 999 of 1,000 true Poisson series so long.
  // kPoisson.
  double distance = 0;
  double limit = 0;
  // kPoisson: distance <= limit. kConstant: mean within 1 % and variation below 0.05. Series of
  // less than kFewestGaps, and traces, always fit.
  bool fits = true;
};
inline constexpr int64_t kFewestGaps = 10;

// `times`: ascending seconds.
GapCheck check_gaps(std::span<const double> times, ArrivalProcess process, double per_second);

}  // namespace tidemill::cli
