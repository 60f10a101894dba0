#include "sched/step_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace tidemill {
namespace {

using Vector = std::array<double, 3>;
using Matrix = std::array<Vector, 3>;

// Features of common steps become numbers near 1.
constexpr double kTokenScale = 1.0 / 256;
constexpr double kAreaScale = 1.0 / (1 << 20);
// An outlier makes the past fade like so many steps.
constexpr double kOutlierSteps = 10;

Vector features(const StepShape& shape) {
  return {1.0, kTokenScale * static_cast<double>(shape.tokens), kAreaScale * shape.area};
}

// Solves the equations of the features in `mask`, the others being 0 (elimination without
// pivoting: the matrix is positive definite).
std::optional<Vector> solve_subset(Matrix m, Vector b, unsigned mask) {
  for (size_t i = 0; i < 3; ++i) {
    if (mask >> i & 1) continue;
    for (size_t j = 0; j < 3; ++j) m[i][j] = m[j][i] = 0;
    m[i][i] = 1;
    b[i] = 0;
  }
  for (size_t i = 0; i < 3; ++i) {
    if (!(m[i][i] > 0)) return std::nullopt;
    for (size_t k = i + 1; k < 3; ++k) {
      const double factor = m[k][i] / m[i][i];
      for (size_t j = i; j < 3; ++j) m[k][j] -= factor * m[i][j];
      b[k] -= factor * b[i];
    }
  }
  for (size_t i = 3; i-- > 0;) {
    for (size_t j = i + 1; j < 3; ++j) b[i] -= m[i][j] * b[j];
    b[i] /= m[i][i];
  }
  return b;
}

}  // namespace

void StepCost::record(const StepShape& shape, double ms) {
  if (!std::isfinite(ms) || ms <= 0 || shape.tokens <= 0) return;
  double keep = options_.memory;
  const double expected = fitted() ? predict(shape) : 0;
  if (expected > 0 && (ms < expected / options_.outlier || ms > expected * options_.outlier)) {
    ms = std::clamp(ms, expected / options_.outlier, expected * options_.outlier);
    keep = std::pow(keep, kOutlierSteps);
  }
  const Vector x = features(shape);
  const double weight = 1.0 / (ms * ms);
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 3; ++j) {
      normal_[i][j] = keep * normal_[i][j] + weight * x[i] * x[j];
    }
    moment_[i] = keep * moment_[i] + weight * x[i] * ms;
  }
  ++samples_;
  solve();
}

// Non-negative least squares: of the solutions on every subset of the three features, the best
// that has no negative coefficient.
void StepCost::solve() {
  Matrix m = normal_;
  for (size_t i = 0; i < 3; ++i) m[i][i] += options_.ridge * m[i][i] + 1e-12 * m[0][0];
  double best = std::numeric_limits<double>::infinity();
  for (unsigned mask = 1; mask < 8; ++mask) {
    const std::optional<Vector> x = solve_subset(m, moment_, mask);
    if (!x || *std::min_element(x->begin(), x->end()) < 0) continue;
    double loss = 0;  // up to a constant: x'Mx - 2 x'b
    for (size_t i = 0; i < 3; ++i) {
      double row = 0;
      for (size_t j = 0; j < 3; ++j) row += m[i][j] * (*x)[j];
      loss += (*x)[i] * (row - 2 * moment_[i]);
    }
    if (loss >= best) continue;
    best = loss;
    coefficients_ = {(*x)[0], (*x)[1] * kTokenScale, (*x)[2] * kAreaScale};
  }
}

double StepCost::predict(const StepShape& shape) const {
  return coefficients_.ms + coefficients_.ms_per_token * static_cast<double>(shape.tokens) +
         coefficients_.ms_per_area * shape.area;
}

int64_t StepCost::longest_chunk(const StepShape& shape, int64_t position, double limit_ms,
                                int64_t most) const {
  // c/2 n^2 + (b + c position) n <= left
  const double left = limit_ms - predict(shape);
  if (left < 0) return 0;
  const double linear =
      coefficients_.ms_per_token + coefficients_.ms_per_area * static_cast<double>(position);
  const double square = 0.5 * coefficients_.ms_per_area;
  // The root in the form that does not cancel when `square` is small.
  const double divisor = linear + std::sqrt(linear * linear + 4 * square * left);
  if (!(divisor > 0)) return most;
  const double n = std::floor(2 * left / divisor);
  return n >= static_cast<double>(most) ? most : static_cast<int64_t>(n);
}

}  // namespace tidemill
