// Counters, gauges and histograms, and their text for Prometheus.
//
// Updates never lock and may come from any thread. Counts are exact; a reading that runs beside
// updates sees each of them or does not, and a histogram's buckets always add up to its count.
#pragma once

#include <array>
#include <atomic>
#include <cassert>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "observe/prometheus_text.h"

namespace tidemill {

class Counter {
 public:
  // Only up: n < 0 is ignored.
  void add(int64_t n = 1) {
    if (n > 0) value_.fetch_add(n, std::memory_order_relaxed);
  }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

class Gauge {
 public:
  void set(double value) { value_.store(value, std::memory_order_relaxed); }
  void add(double value) { value_.fetch_add(value, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Histogram {
 public:
  // Upper bounds of the buckets, rising, inclusive as Prometheus has them; one more bucket takes
  // what lies above the last.
  explicit Histogram(std::span<const double> bounds);

  // `value`, `times` over. What is no number or not finite is ignored, for it would spoil the sum
  // for ever; a negative value counts as 0.
  void observe(double value, int64_t times = 1);

  int64_t count() const;
  double sum() const { return sum_.load(std::memory_order_relaxed); }
  // The value below which a share q (0 to 1) of the observations lies, taking them as spread evenly
  // within their bucket. Above the last bound: the last bound. Nothing observed: 0.
  double quantile(double q) const;

  const std::vector<double>& bounds() const { return bounds_; }
  // Of each bucket alone (not added up); one more than bounds.
  std::vector<int64_t> buckets() const;

 private:
  std::vector<double> bounds_;
  std::vector<std::atomic<int64_t>> buckets_;
  std::atomic<double> sum_{0};
};

// 1, 2, 5, 10, 20, .. from `from` (a power of ten) to below `to`, and `to`. Each is the double
// nearest to the decimal number, so that labels read 0.002 and not 0.0020000000000000005.
std::vector<double> one_two_five(double from, double to);

// Metrics of one name that differ in the values of their labels.
template <typename Metric>
class MetricFamily {
 public:
  // At most `limit` sets of values; every further one is counted in the set of only "other", so
  // that no client can make the server's memory or its metrics grow.
  MetricFamily(std::vector<std::string> labels, size_t limit)
      : labels_(std::move(labels)), children_(limit + 1) {}

  // The metric of these values, one for each label in their order. Valid as long as the family.
  // Does not lock unless the set is new; its cost is linear in the number of sets.
  Metric& with(std::initializer_list<std::string_view> values) {
    return with(std::span<const std::string_view>(values.begin(), values.size()));
  }
  Metric& with(std::span<const std::string_view> values);

  const std::vector<std::string>& labels() const { return labels_; }
  // In the order of their making.
  template <typename Visit>
  void visit(Visit&& each) const {  // each(const std::vector<std::string>& values, const Metric&)
    const size_t size = size_.load(std::memory_order_acquire);
    for (size_t i = 0; i < size; ++i) each(children_[i]->values, children_[i]->metric);
  }

 private:
  struct Child {
    std::vector<std::string> values;
    Metric metric;
  };
  Metric* find(std::span<const std::string_view> values, size_t begin, size_t end);

  std::vector<std::string> labels_;
  std::mutex growing_;
  // Those below size_ are whole and never change place.
  std::vector<std::unique_ptr<Child>> children_;
  std::atomic<size_t> size_{0};
};

using CounterFamily = MetricFamily<Counter>;
using GaugeFamily = MetricFamily<Gauge>;

// Owns metrics and writes them, in the order of their registration. Registering and writing may
// run beside each other and beside updates; references are valid as long as the registry. A name
// may be registered once, with the characters that Prometheus allows; that is asserted.
class MetricsRegistry {
 public:
  static constexpr size_t kMaxLabelSets = 64;

  Counter& counter(std::string name, std::string help);
  Gauge& gauge(std::string name, std::string help);
  Histogram& histogram(std::string name, std::string help, std::span<const double> bounds);
  CounterFamily& counters(std::string name, std::string help, std::vector<std::string> labels,
                          size_t limit = kMaxLabelSets);
  GaugeFamily& gauges(std::string name, std::string help, std::vector<std::string> labels,
                      size_t limit = kMaxLabelSets);

  void write(PrometheusText& text) const;

 private:
  struct Entry {
    std::string name;
    std::string help;
    std::variant<std::unique_ptr<Counter>, std::unique_ptr<Gauge>, std::unique_ptr<Histogram>,
                 std::unique_ptr<CounterFamily>, std::unique_ptr<GaugeFamily>>
        metric;
  };
  template <typename Metric, typename... Args>
  Metric& add(std::string name, std::string help, Args&&... args);

  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

// ---- implementation

template <typename Metric>
Metric* MetricFamily<Metric>::find(std::span<const std::string_view> values, size_t begin,
                                   size_t end) {
  for (size_t i = begin; i < end; ++i) {
    const std::vector<std::string>& own = children_[i]->values;
    if (std::equal(own.begin(), own.end(), values.begin(), values.end())) {
      return &children_[i]->metric;
    }
  }
  return nullptr;
}

template <typename Metric>
Metric& MetricFamily<Metric>::with(std::span<const std::string_view> values) {
  assert(values.size() == labels_.size());
  const size_t seen = size_.load(std::memory_order_acquire);
  if (Metric* metric = find(values, 0, seen)) return *metric;

  const std::lock_guard lock(growing_);
  const size_t size = size_.load(std::memory_order_relaxed);
  if (Metric* metric = find(values, seen, size)) return *metric;
  // The last place is kept for "other", whoever asks for it.
  const std::vector<std::string_view> others(labels_.size(), "other");
  if (size + 1 >= children_.size()) {
    if (Metric* metric = find(others, 0, size)) return *metric;
    values = others;
  }
  children_[size] = std::make_unique<Child>();
  children_[size]->values.assign(values.begin(), values.end());
  size_.store(size + 1, std::memory_order_release);
  return children_[size]->metric;
}

}  // namespace tidemill
