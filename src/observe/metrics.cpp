#include "observe/metrics.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>

namespace tidemill {

Histogram::Histogram(std::span<const double> bounds)
    : bounds_(bounds.begin(), bounds.end()), buckets_(bounds.size() + 1) {
  assert(!bounds_.empty() && std::is_sorted(bounds_.begin(), bounds_.end()));
}

void Histogram::observe(double value, int64_t times) {
  if (!std::isfinite(value) || times < 1) return;
  value = std::max(value, 0.0);
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  buckets_[static_cast<size_t>(bucket)].fetch_add(times, std::memory_order_relaxed);
  sum_.fetch_add(value * static_cast<double>(times), std::memory_order_relaxed);
}

std::vector<int64_t> Histogram::buckets() const {
  std::vector<int64_t> counts;
  counts.reserve(buckets_.size());
  for (const auto& bucket : buckets_) counts.push_back(bucket.load(std::memory_order_relaxed));
  return counts;
}

int64_t Histogram::count() const {
  const std::vector<int64_t> counts = buckets();
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

double Histogram::quantile(double q) const {
  const std::vector<int64_t> counts = buckets();
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (total == 0) return 0;
  const double rank = q > 0 ? std::min(q, 1.0) * static_cast<double>(total) : 0;  // also of NaN
  double below = 0;
  for (size_t i = 0; i < bounds_.size(); ++i) {
    const auto inside = static_cast<double>(counts[i]);
    if (inside > 0 && below + inside >= rank) {
      const double low = i == 0 ? 0 : bounds_[i - 1];
      return low + (bounds_[i] - low) * (rank - below) / inside;
    }
    below += inside;
  }
  return bounds_.back();
}

std::vector<double> one_two_five(double from, double to) {
  std::vector<double> row;
  for (int exponent = static_cast<int>(std::lround(std::log10(from)));; ++exponent) {
    for (const int digit : {1, 2, 5}) {
      const double value = std::strtod(fmt::format("{}e{}", digit, exponent).c_str(), nullptr);
      if (value >= to) {
        row.push_back(to);
        return row;
      }
      row.push_back(value);
    }
  }
}

namespace {

// https://prometheus.io/docs/concepts/data_model/
[[maybe_unused]] bool is_metric_name(std::string_view name) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':';
  };
  return !name.empty() && is_letter(name[0]) && std::all_of(name.begin(), name.end(), [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9');
  });
}

void write_metric(PrometheusText& text, const Counter& counter, const MetricLabels& labels) {
  text.sample(counter.value(), labels);
}
void write_metric(PrometheusText& text, const Gauge& gauge, const MetricLabels& labels) {
  text.sample(gauge.value(), labels);
}
void write_metric(PrometheusText& text, const Histogram& histogram, const MetricLabels& labels) {
  text.histogram(histogram.bounds(), histogram.buckets(), histogram.sum(), labels);
}
template <typename Metric>
void write_metric(PrometheusText& text, const MetricFamily<Metric>& family, const MetricLabels&) {
  family.visit([&](const std::vector<std::string>& values, const Metric& metric) {
    MetricLabels labels;
    for (size_t i = 0; i < values.size(); ++i) labels.emplace_back(family.labels()[i], values[i]);
    write_metric(text, metric, labels);
  });
}

std::string_view type_of(const Counter&) { return "counter"; }
std::string_view type_of(const Gauge&) { return "gauge"; }
std::string_view type_of(const Histogram&) { return "histogram"; }
std::string_view type_of(const CounterFamily&) { return "counter"; }
std::string_view type_of(const GaugeFamily&) { return "gauge"; }

}  // namespace

template <typename Metric, typename... Args>
Metric& MetricsRegistry::add(std::string name, std::string help, Args&&... args) {
  auto metric = std::make_unique<Metric>(std::forward<Args>(args)...);
  Metric& reference = *metric;
  const std::lock_guard lock(mutex_);
  assert(is_metric_name(name));
  assert(std::none_of(entries_.begin(), entries_.end(),
                      [&](const Entry& entry) { return entry.name == name; }));
  entries_.push_back({std::move(name), std::move(help), std::move(metric)});
  return reference;
}

Counter& MetricsRegistry::counter(std::string name, std::string help) {
  return add<Counter>(std::move(name), std::move(help));
}
Gauge& MetricsRegistry::gauge(std::string name, std::string help) {
  return add<Gauge>(std::move(name), std::move(help));
}
Histogram& MetricsRegistry::histogram(std::string name, std::string help,
                                      std::span<const double> bounds) {
  return add<Histogram>(std::move(name), std::move(help), bounds);
}
CounterFamily& MetricsRegistry::counters(std::string name, std::string help,
                                         std::vector<std::string> labels, size_t limit) {
  return add<CounterFamily>(std::move(name), std::move(help), std::move(labels), limit);
}
GaugeFamily& MetricsRegistry::gauges(std::string name, std::string help,
                                     std::vector<std::string> labels, size_t limit) {
  return add<GaugeFamily>(std::move(name), std::move(help), std::move(labels), limit);
}

void MetricsRegistry::write(PrometheusText& text) const {
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_) {
    std::visit(
        [&](const auto& metric) {
          text.family(entry.name, type_of(*metric), entry.help);
          write_metric(text, *metric, {});
        },
        entry.metric);
  }
}

}  // namespace tidemill
