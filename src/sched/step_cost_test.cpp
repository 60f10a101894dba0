#include "sched/step_cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace tidemill {
namespace {

// A device with known costs and measurement noise.
struct Device {
  double a, b, c;
  double noise = 0;
  std::mt19937 random{7};

  double truth(const StepShape& s) const {
    return a + b * static_cast<double>(s.tokens) + c * s.area;
  }
  double measure(const StepShape& s) {
    return truth(s) * std::exp(noise * std::normal_distribution<double>()(random));
  }
};

// Decode steps of 1 to 64 requests, two thirds of them with a prefill chunk.
StepShape random_step(std::mt19937& random) {
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  StepShape shape;
  const int64_t decodes = draw(1, 64);
  for (int64_t i = 0; i < decodes; ++i) shape.add(draw(1, 20000), 1);
  if (draw(0, 2) > 0) shape.add(draw(0, 100000), draw(16, 2048));
  return shape;
}

void feed(StepCost& cost, Device& device, int steps, uint32_t seed) {
  std::mt19937 random(seed);
  for (int i = 0; i < steps; ++i) {
    const StepShape shape = random_step(random);
    cost.record(shape, device.measure(shape));
  }
}

double worst_error(const StepCost& cost, const Device& device) {
  std::mt19937 random(99);
  double worst = 0;
  for (int i = 0; i < 500; ++i) {
    const StepShape shape = random_step(random);
    worst = std::max(worst, std::abs(cost.predict(shape) / device.truth(shape) - 1));
  }
  return worst;
}

TEST(StepCost, FindsExactCoefficients) {
  Device device{4.0, 0.02, 3e-7};
  StepCost cost;
  feed(cost, device, 64, 1);
  ASSERT_TRUE(cost.fitted());
  EXPECT_NEAR(cost.coefficients().ms, 4.0, 1e-3);
  EXPECT_NEAR(cost.coefficients().ms_per_token, 0.02, 1e-5);
  EXPECT_NEAR(cost.coefficients().ms_per_area, 3e-7, 1e-9);
}

TEST(StepCost, FindsThemUnderNoise) {
  for (const double noise : {0.02, 0.1, 0.2}) {
    Device device{4.0, 0.02, 3e-7, noise};
    StepCost cost;
    feed(cost, device, 500, 2);
    EXPECT_LT(worst_error(cost, device), noise) << noise;
  }
}

TEST(StepCost, NeverNegative) {
  // True costs of zero, which noise would push below.
  for (const Device& device : {Device{5, 0, 0, 0.2}, Device{0, 0.1, 0, 0.2},
                               Device{0, 0, 1e-6, 0.2}, Device{5, 0, 1e-6, 0.2}}) {
    Device noisy = device;
    StepCost cost;
    std::mt19937 random(3);
    for (int i = 0; i < 300; ++i) {
      const StepShape shape = random_step(random);
      cost.record(shape, noisy.measure(shape));
      ASSERT_GE(cost.coefficients().ms, 0);
      ASSERT_GE(cost.coefficients().ms_per_token, 0);
      ASSERT_GE(cost.coefficients().ms_per_area, 0);
    }
    EXPECT_LT(worst_error(cost, device), 0.2);
  }
}

TEST(StepCost, FollowsAChangeOfTheDevice) {
  Device device{4.0, 0.02, 3e-7, 0.05};
  StepCost cost;
  feed(cost, device, 500, 4);
  Device slower{40.0, 0.2, 3e-6, 0.05};  // ten times, beyond the outlier limit at first
  feed(cost, slower, 500, 5);
  EXPECT_LT(worst_error(cost, slower), 0.1);
}

TEST(StepCost, OneStallChangesLittle) {
  Device device{4.0, 0.02, 3e-7, 0.02};
  StepCost cost;
  feed(cost, device, 300, 6);
  StepShape shape;
  shape.add(1000, 512);
  cost.record(shape, 1e6);
  EXPECT_LT(worst_error(cost, device), 0.25);
}

TEST(StepCost, IgnoresWhatIsNoMeasurement) {
  StepCost cost({.min_samples = 3});
  StepShape shape;
  shape.add(0, 10);
  for (const double ms : {0.0, -1.0, std::numeric_limits<double>::infinity(),
                          std::numeric_limits<double>::quiet_NaN()}) {
    for (int i = 0; i < 5; ++i) cost.record(shape, ms);
  }
  for (int i = 0; i < 5; ++i) cost.record({}, 1.0);
  EXPECT_FALSE(cost.fitted());
}

TEST(StepCost, EqualStepsGiveFiniteCoefficients) {
  StepCost cost({.min_samples = 3});
  StepShape shape;
  shape.add(100, 1);
  for (int i = 0; i < 1000; ++i) cost.record(shape, 2.0);
  EXPECT_NEAR(cost.predict(shape), 2.0, 0.02);
}

TEST(StepCost, LongestChunkIsTheLongest) {
  Device device{4.0, 0.02, 3e-6};
  StepCost cost;
  feed(cost, device, 64, 8);
  StepShape base;
  for (int i = 0; i < 32; ++i) base.add(3000, 1);
  for (const int64_t position : {0, 1000, 100000}) {
    for (const double limit : {5.0, 8.0, 20.0, 100.0}) {
      const int64_t n = cost.longest_chunk(base, position, limit, 1 << 20);
      StepShape fits = base, too_long = base;
      fits.add(position, n);
      too_long.add(position, n + 1);
      if (n > 0) {
        EXPECT_LE(cost.predict(fits), limit * (1 + 1e-9));
      }
      EXPECT_GT(cost.predict(too_long), limit * (1 - 1e-9));
    }
  }
  EXPECT_EQ(cost.longest_chunk(base, 0, 1e9, 512), 512);
  EXPECT_EQ(cost.longest_chunk(base, 0, 1.0, 512), 0);
}

}  // namespace
}  // namespace tidemill
