#include "sched/draft_cost.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

namespace tidemill {
namespace {

// A correction never takes a size below this share of its profile, whatever was measured.
constexpr double kLeastShare = 0.1;
constexpr uintmax_t kLargestFile = 1 << 20;

bool is_time(double ms) { return std::isfinite(ms) && ms >= 0.0; }

template <typename Number>
bool parse(std::string_view text, Number& value) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

Result<CostCurve> CostCurve::create(std::vector<CostPoint> points, int64_t largest_graph) {
  if (points.empty()) return fail(ErrorCode::kInvalidArgument, "a cost curve without points");
  bool graph_is_point = largest_graph == 0;
  for (size_t i = 0; i < points.size(); ++i) {
    const auto [tokens, ms] = points[i];
    if (tokens < 1 || (i > 0 && tokens <= points[i - 1].tokens)) {
      return fail(ErrorCode::kInvalidArgument,
                  "point {} of the cost curve has {} tokens; tokens must rise from 1", i, tokens);
    }
    if (!is_time(ms) || ms == 0.0) {
      return fail(ErrorCode::kInvalidArgument,
                  "the cost curve gives {} ms for {} tokens; a time must be above 0", ms, tokens);
    }
    graph_is_point |= tokens == largest_graph;
    if (i > 0) points[i].ms = std::max(ms, points[i - 1].ms);
  }
  if (!graph_is_point) {
    return fail(ErrorCode::kInvalidArgument,
                "the largest graph has {} tokens, but the cost curve has no point there",
                largest_graph);
  }
  return CostCurve(std::move(points), largest_graph);
}

Result<CostCurve> CostCurve::load(const std::filesystem::path& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) {
    return fail(ErrorCode::kFileNotFound, "cannot read the cost curve {}: {}", path.string(),
                error.message());
  }
  if (bytes > kLargestFile) {
    return fail(ErrorCode::kInvalidArgument, "{} has {} bytes; a cost curve has at most {}",
                path.string(), bytes, kLargestFile);
  }
  std::ifstream file(path);
  std::vector<CostPoint> points;
  std::string text;
  bool header = true;
  for (int64_t line = 1; std::getline(file, text); ++line) {
    std::string_view rest = text;
    if (!rest.empty() && rest.back() == '\r') rest.remove_suffix(1);
    if (rest.empty() || rest.front() == '#') continue;
    if (header) {
      if (rest != "tokens,ms") {
        return fail(ErrorCode::kInvalidArgument, "{}:{}: expected the header \"tokens,ms\"",
                    path.string(), line);
      }
      header = false;
      continue;
    }
    CostPoint point;
    const size_t comma = rest.find(',');
    if (comma == std::string_view::npos || !parse(rest.substr(0, comma), point.tokens) ||
        !parse(rest.substr(comma + 1), point.ms)) {
      return fail(ErrorCode::kInvalidArgument, "{}:{}: expected a line \"tokens,ms\", e.g. 64,9.5",
                  path.string(), line);
    }
    points.push_back(point);
  }
  if (file.bad() || !file.eof()) {
    return fail(ErrorCode::kFileRead, "reading the cost curve {} failed", path.string());
  }
  const int64_t largest = points.empty() ? 0 : points.back().tokens;
  auto curve = create(std::move(points), largest);
  if (!curve) return fail(curve.error().code, "{}: {}", path.string(), curve.error().message);
  return curve;
}

size_t CostCurve::point_at(int64_t tokens) const {
  const auto found =
      std::lower_bound(points_.begin(), points_.end(), tokens,
                       [](const CostPoint& point, int64_t t) { return point.tokens < t; });
  return std::min(static_cast<size_t>(found - points_.begin()), points_.size() - 1);
}

int64_t CostCurve::padded(int64_t tokens) const {
  return tokens > largest_graph_ ? tokens : points_[point_at(tokens)].tokens;
}

double CostCurve::ms(int64_t tokens) const {
  const size_t above = point_at(tokens);
  const CostPoint& end = points_[above];
  if (tokens <= largest_graph_ || tokens == end.tokens) return end.ms;
  if (above == 0) {  // before the first point, or past the only one
    return tokens < end.tokens
               ? end.ms
               : end.ms * static_cast<double>(tokens) / static_cast<double>(end.tokens);
  }
  const CostPoint& begin = points_[above - 1];
  const double share = static_cast<double>(tokens - begin.tokens) /
                       static_cast<double>(end.tokens - begin.tokens);  // above 1 past the last
  return begin.ms + share * (end.ms - begin.ms);
}

// Andrew's monotone chain.
CostCurve CostCurve::convex_hull() const {
  const auto slope = [](const CostPoint& a, const CostPoint& b) {
    return (b.ms - a.ms) / static_cast<double>(b.tokens - a.tokens);
  };
  std::vector<CostPoint> hull;
  for (const CostPoint& point : points_) {
    while (hull.size() >= 2 &&
           slope(hull[hull.size() - 2], hull.back()) >= slope(hull.back(), point)) {
      hull.pop_back();
    }
    hull.push_back(point);
  }
  return CostCurve(std::move(hull), 0);
}

void SamplerTime::record(double ms) {
  if (!is_time(ms)) return;
  window_.push_back(ms);
  values_.insert(ms);
  if (values_.size() > kWindow) {
    values_.erase(window_.front());
    window_.pop_front();
  }
}

template <typename Change>
void ForwardSlope::update(size_t size, Change change) {
  RunningMedian& values = by_size_[size];
  if (!values.empty()) medians_.erase(values.median());
  change(values);
  if (!values.empty()) medians_.insert(values.median());
}

void ForwardSlope::record(size_t size, double ms_per_row) {
  window_.push_back({size, ms_per_row});
  update(size, [&](RunningMedian& values) { values.insert(ms_per_row); });
  if (window_.size() > kWindow) {
    const Step old = window_.front();
    window_.pop_front();
    update(old.size, [&](RunningMedian& values) { values.erase(old.ms_per_row); });
  }
}

DraftCost::DraftCost(CostCurve profile, double sampler_ms)
    : profile_(std::move(profile)),
      corrected_(profile_),
      hull_(profile_.convex_hull()),
      sampler_(sampler_ms),
      slope_(profile_.points().size()) {}

void DraftCost::record_forward(int64_t tokens, double ms) {
  if (!is_time(ms) || tokens < 1) return;
  const int64_t rows = profile_.padded(tokens);
  const double before = slope_.ms_per_row();
  slope_.record(profile_.point_at(tokens), (ms - profile_.ms(tokens)) / static_cast<double>(rows));
  if (slope_.ms_per_row() != before) correct();
}

void DraftCost::correct() {
  std::vector<CostPoint> points = profile_.points();
  for (CostPoint& point : points) {
    point.ms = std::max(kLeastShare * point.ms,
                        point.ms + slope_.ms_per_row() * static_cast<double>(point.tokens));
  }
  // Cannot fail: the tokens are the profile's, and the times are positive.
  if (auto curve = CostCurve::create(std::move(points), profile_.largest_graph())) {
    corrected_ = std::move(*curve);
    hull_ = corrected_.convex_hull();
  }
}

}  // namespace tidemill
