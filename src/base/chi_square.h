// Goodness of fit, for tests of draws.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace tidemill {

// Pearson's chi-square of counts against cell probabilities, as standard deviations from what a
// true model gives (Wilson and Hilferty's cube root makes it nearly normal): above 4 means a wrong
// model but for one run in 30,000. Infinite when a cell of probability 0 has been hit.
inline double chi_square_z(std::span<const int64_t> counts, std::span<const double> probabilities) {
  double trials = 0.0;
  for (const int64_t count : counts) trials += static_cast<double>(count);
  double chi_square = 0.0;
  double freedom = -1.0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto count = static_cast<double>(counts[i]);
    const double expected = trials * probabilities[i];
    if (expected == 0.0) {
      if (counts[i] != 0) return std::numeric_limits<double>::infinity();
      continue;
    }
    chi_square += (count - expected) * (count - expected) / expected;
    freedom += 1.0;
  }
  if (freedom < 1.0) return 0.0;
  const double spread = 2.0 / (9.0 * freedom);
  return (std::cbrt(chi_square / freedom) - (1.0 - spread)) / std::sqrt(spread);
}

}  // namespace tidemill
