#include "observe/prometheus_text.h"

#include <fmt/core.h>

#include <cassert>
#include <cmath>
#include <numeric>

#include "observe/utf8_lossy.h"

namespace tidemill {
namespace {

void append_escaped(std::string& out, std::string_view text, bool quotes) {
  for (const char c : utf8_lossy(text)) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '"' && quotes) {
      out += "\\\"";
    } else {
      out += c;
    }
  }
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

}  // namespace

void PrometheusText::family(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  text_ += fmt::format("# HELP {} ", name);
  append_escaped(text_, help, false);
  text_ += fmt::format("\n# TYPE {} {}\n", name, type);
}

void PrometheusText::sample(int64_t value, const MetricLabels& labels) {
  line("", labels, "", fmt::format("{}", value));
}

void PrometheusText::sample(double value, const MetricLabels& labels) {
  line("", labels, "", number(value));
}

void PrometheusText::histogram(std::span<const double> bounds, std::span<const int64_t> buckets,
                               double sum, const MetricLabels& labels) {
  assert(buckets.size() == bounds.size() + 1);
  int64_t count = 0;
  for (size_t i = 0; i < buckets.size(); ++i) {
    count += buckets[i];
    line("_bucket", labels, i < bounds.size() ? number(bounds[i]) : "+Inf",
         fmt::format("{}", count));
  }
  line("_sum", labels, "", number(sum));
  line("_count", labels, "", fmt::format("{}", count));
}

void PrometheusText::line(std::string_view suffix, const MetricLabels& labels, std::string_view le,
                          std::string_view value) {
  text_ += name_;
  text_ += suffix;
  char before = '{';
  const auto label = [&](std::string_view name, std::string_view text) {
    text_ += before;
    text_ += name;
    text_ += "=\"";
    append_escaped(text_, text, true);
    text_ += '"';
    before = ',';
  };
  for (const auto& [name, text] : constant_) label(name, text);
  for (const auto& [name, text] : labels) label(name, text);
  if (!le.empty()) label("le", le);
  if (before == ',') text_ += '}';
  text_ += ' ';
  text_ += value;
  text_ += '\n';
}

}  // namespace tidemill
