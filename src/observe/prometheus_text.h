// The text exposition format of Prometheus, version 0.0.4.
// https://prometheus.io/docs/instrumenting/exposition_formats/
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tidemill {

inline constexpr std::string_view kPrometheusContentType =
    "text/plain; version=0.0.4; charset=utf-8";

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// Writes families one after the other: family(), then all of its samples. Label values and helps
// may hold any bytes: they are escaped, and bytes that are not UTF-8 become U+FFFD (a scraper drops
// the whole page for one of them). Names must be valid.
class PrometheusText {
 public:
  // `constant` is on every sample, before its own labels.
  explicit PrometheusText(MetricLabels constant = {}) : constant_(std::move(constant)) {}

  // type: "counter", "gauge" or "histogram". The name of a counter ends in _total.
  void family(std::string_view name, std::string_view type, std::string_view help);
  void sample(int64_t value, const MetricLabels& labels = {});
  // NaN and infinities are written as the format has them: NaN, +Inf, -Inf.
  void sample(double value, const MetricLabels& labels = {});
  // `buckets`: of each bucket alone, the last one above all bounds.
  void histogram(std::span<const double> bounds, std::span<const int64_t> buckets, double sum,
                 const MetricLabels& labels = {});

  // A family of one sample.
  template <typename Number>
  void counter(std::string_view name, std::string_view help, Number value) {
    family(name, "counter", help);
    sample(value);
  }
  template <typename Number>
  void gauge(std::string_view name, std::string_view help, Number value) {
    family(name, "gauge", help);
    sample(value);
  }

  const std::string& text() const { return text_; }
  std::string take() { return std::move(text_); }

 private:
  void line(std::string_view suffix, const MetricLabels& labels, std::string_view le,
            std::string_view value);

  MetricLabels constant_;
  std::string name_;
  std::string text_;
};

}  // namespace tidemill
