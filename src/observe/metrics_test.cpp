#include "observe/metrics.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <thread>

namespace tidemill {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string written(const MetricsRegistry& registry, MetricLabels constant = {}) {
  PrometheusText text(std::move(constant));
  registry.write(text);
  return text.take();
}

TEST(Metrics, TextOfEachType) {
  MetricsRegistry registry;
  registry.counter("a_total", "Events.").add(3);
  registry.gauge("b", "Level.").set(-1.5);
  const std::array<double, 2> bounds = {0.002, 5};
  Histogram& histogram = registry.histogram("c_seconds", "Time.", bounds);
  histogram.observe(0.002);  // bounds are inclusive
  histogram.observe(0.25, 2);
  histogram.observe(7);
  registry.counters("d_total", "By reason.", {"reason"}).with({"rate"}).add();
  registry.counters("e_total", "None yet.", {"reason"});
  EXPECT_EQ(written(registry, {{"model_name", "m"}}),
            "# HELP a_total Events.\n"
            "# TYPE a_total counter\n"
            "a_total{model_name=\"m\"} 3\n"
            "# HELP b Level.\n"
            "# TYPE b gauge\n"
            "b{model_name=\"m\"} -1.5\n"
            "# HELP c_seconds Time.\n"
            "# TYPE c_seconds histogram\n"
            "c_seconds_bucket{model_name=\"m\",le=\"0.002\"} 1\n"
            "c_seconds_bucket{model_name=\"m\",le=\"5\"} 3\n"
            "c_seconds_bucket{model_name=\"m\",le=\"+Inf\"} 4\n"
            "c_seconds_sum{model_name=\"m\"} 7.502\n"
            "c_seconds_count{model_name=\"m\"} 4\n"
            "# HELP d_total By reason.\n"
            "# TYPE d_total counter\n"
            "d_total{model_name=\"m\",reason=\"rate\"} 1\n"
            "# HELP e_total None yet.\n"
            "# TYPE e_total counter\n");
}

TEST(Metrics, TextIsEscaped) {
  PrometheusText text;
  text.family("x", "gauge", "a \"b\"\\\nc");
  text.sample(int64_t{1}, {{"l", "a\"b\\c\nd\xff\xC3\xA9"}});
  EXPECT_EQ(text.text(),
            "# HELP x a \"b\"\\\\\\nc\n# TYPE x gauge\n"
            "x{l=\"a\\\"b\\\\c\\nd\xEF\xBF\xBD\xC3\xA9\"} 1\n");
}

TEST(Metrics, NumbersAsTheFormatHasThem) {
  PrometheusText text;
  text.family("x", "gauge", "");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double value : {0.0, 1e300, 0.1, std::nan(""), kInfinity, -kInfinity}) {
    text.sample(value);
  }
  EXPECT_THAT(text.text(), HasSubstr("x 0\nx 1e+300\nx 0.1\nx NaN\nx +Inf\nx -Inf\n"));
}

TEST(Metrics, CounterOnlyRises) {
  Counter counter;
  counter.add(5);
  counter.add(-3);
  counter.add(0);
  EXPECT_EQ(counter.value(), 5);
}

TEST(Metrics, HistogramIgnoresWhatWouldSpoilIt) {
  Histogram histogram(std::array{1.0, 2.0});
  histogram.observe(std::nan(""));
  histogram.observe(std::numeric_limits<double>::infinity());
  histogram.observe(1, 0);
  histogram.observe(1, -4);
  EXPECT_EQ(histogram.count(), 0);
  EXPECT_EQ(histogram.sum(), 0);
  histogram.observe(-3);
  EXPECT_THAT(histogram.buckets(), ElementsAre(1, 0, 0));
  EXPECT_EQ(histogram.sum(), 0);
}

TEST(Metrics, QuantileInterpolates) {
  Histogram histogram(std::array{1.0, 2.0, 4.0});
  EXPECT_EQ(histogram.quantile(0.5), 0);  // nothing observed
  histogram.observe(0.5, 10);
  histogram.observe(3, 10);
  EXPECT_DOUBLE_EQ(histogram.quantile(0.25), 0.5);
  EXPECT_DOUBLE_EQ(histogram.quantile(0.5), 1);
  EXPECT_DOUBLE_EQ(histogram.quantile(0.75), 3);
  EXPECT_DOUBLE_EQ(histogram.quantile(1), 4);
  EXPECT_DOUBLE_EQ(histogram.quantile(9), 4);
  EXPECT_DOUBLE_EQ(histogram.quantile(-1), 0);
  EXPECT_DOUBLE_EQ(histogram.quantile(std::nan("")), 0);
  histogram.observe(100, 80);
  EXPECT_DOUBLE_EQ(histogram.quantile(0.9), 4);  // no more is known than "above"
}

TEST(Metrics, RowsOf125) {
  EXPECT_THAT(one_two_five(0.001, 0.6),
              ElementsAre(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.6));
  EXPECT_THAT(one_two_five(1, 20), ElementsAre(1, 2, 5, 10, 20));
  EXPECT_THAT(one_two_five(1, 128), ElementsAre(1, 2, 5, 10, 20, 50, 100, 128));
  EXPECT_EQ(one_two_five(1, 1e6).size(), 19u);
}

TEST(Metrics, LabelSetsAreBounded) {
  CounterFamily family({"path", "status"}, 3);
  for (int i = 0; i < 100; ++i) family.with({fmt::format("/{}", i), "200"}).add();
  family.with({"/1", "200"}).add();
  std::string seen;
  family.visit([&](const std::vector<std::string>& values, const Counter& counter) {
    seen += fmt::format("{} {} {}; ", values[0], values[1], counter.value());
  });
  EXPECT_EQ(seen, "/0 200 1; /1 200 2; /2 200 1; other other 97; ");
}

TEST(Metrics, OtherMayBeNamedEarly) {
  CounterFamily family({"reason"}, 2);
  for (const std::string_view reason : {"other", "a", "b", "c"}) family.with({reason}).add();
  EXPECT_EQ(family.with({"other"}).value(), 3);
}

TEST(Metrics, NothingIsLostAmongThreads) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 20'000;
  MetricsRegistry registry;
  CounterFamily& family = registry.counters("a_total", "", {"reason"}, 8);
  Gauge& gauge = registry.gauge("g", "");
  Histogram& histogram = registry.histogram("h", "", std::array{10.0, 50.0});
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        family.with({fmt::format("r{}", i % 12)}).add();
        histogram.observe(i % 100);
        gauge.add(i % 2 == 0 ? 1 : -1);
        if (i % 1000 == 0) written(registry);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  int64_t sum = 0;
  family.visit([&](const auto&, const Counter& counter) { sum += counter.value(); });
  EXPECT_EQ(sum, kThreads * kRounds);
  EXPECT_EQ(histogram.count(), kThreads * kRounds);
  EXPECT_EQ(histogram.sum(), kThreads * (kRounds / 100) * 4950.0);
  EXPECT_EQ(gauge.value(), 0);
}

}  // namespace
}  // namespace tidemill
