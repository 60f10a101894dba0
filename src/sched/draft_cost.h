// What a step costs in time, as a function of how many tokens it holds: the denominator of every
// decision about drafts. A profile taken at start-up seeds it, measured steps correct it:
//
//   step ms = baseline(graph size) + slope * graph size + sampler
//
// Tokens are rows of the forward pass. A graph size is a number of rows that the device has a
// captured graph for: a smaller step is padded to it and costs as much.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <vector>

#include "base/result.h"
#include "sched/draft_median.h"

namespace tidemill {

struct CostPoint {
  int64_t tokens = 0;
  double ms = 0.0;
};

// Forward time over tokens, never falling. Immutable.
class CostCurve {
 public:
  // `points`: tokens ascending and >= 1, ms finite and > 0. Where a point is faster than one of
  // fewer tokens (noise of a profile), it is raised to it. Up to `largest_graph` (0, or the tokens
  // of a point) time is a step function, because padding is real work; above it steps run unpadded
  // and time is interpolated, beyond the last point along the last two. Errors: kInvalidArgument.
  static Result<CostCurve> create(std::vector<CostPoint> points, int64_t largest_graph);

  // A text file of lines "tokens,ms"; '#' starts a comment line, the first other line is the
  // header. Every point is a graph size. Errors: kFileNotFound, kFileRead, kInvalidArgument (with
  // the line).
  static Result<CostCurve> load(const std::filesystem::path& path);

  // Rows that a step of `tokens` really runs.
  int64_t padded(int64_t tokens) const;
  double ms(int64_t tokens) const;

  const std::vector<CostPoint>& points() const { return points_; }
  int64_t largest_graph() const { return largest_graph_; }
  // Its lower convex hull over the points, interpolated everywhere.
  CostCurve convex_hull() const;
  // The first point with at least `tokens`; the last one if there is none.
  size_t point_at(int64_t tokens) const;

 private:
  CostCurve(std::vector<CostPoint> points, int64_t largest_graph)
      : points_(std::move(points)), largest_graph_(largest_graph) {}

  std::vector<CostPoint> points_;
  int64_t largest_graph_ = 0;
};

// Time after the forward pass (sampling, verification and the draft pass: what does not depend on
// how many drafts are verified). Median of the last kWindow measurements.
class SamplerTime {
 public:
  static constexpr int64_t kWindow = 9;
  static constexpr int64_t kNeeded = 5;  // before that many, the seed counts

  explicit SamplerTime(double seed_ms) : seed_ms_(seed_ms) {}
  void record(double ms);
  double ms() const { return values_.size() < kNeeded ? seed_ms_ : values_.median(); }

 private:
  double seed_ms_;
  std::deque<double> window_;
  RunningMedian values_;
};

// By how much real forward passes differ from the profile, in ms a row. A profile runs on empty
// caches; what real contexts add grows with the rows, so each step gives one estimate
// (measured - baseline) / rows. Median of the estimates of each graph size, then median of those
// medians: neither an outlier nor the size that happens to run most decides alone. Over the last
// kWindow steps, O(log kWindow) a step.
class ForwardSlope {
 public:
  static constexpr size_t kWindow = 5000;

  explicit ForwardSlope(size_t sizes) : by_size_(sizes) {}
  void record(size_t size, double ms_per_row);
  double ms_per_row() const { return medians_.empty() ? 0.0 : medians_.median(); }

 private:
  struct Step {
    size_t size;
    double ms_per_row;
  };
  // Changes one size's values and keeps medians_ in line.
  template <typename Change>
  void update(size_t size, Change change);

  std::deque<Step> window_;
  std::vector<RunningMedian> by_size_;
  RunningMedian medians_;  // of every size that has values
};

// One thread. Measurements that are not finite or are negative are ignored: a broken clock must
// not stop the engine.
class DraftCost {
 public:
  explicit DraftCost(CostCurve profile, double sampler_ms = 0.0);

  // A forward pass of `tokens` rows without padding, `ms` on the device. Meant for steps of decode
  // and verification; rows of prefill cost something else.
  void record_forward(int64_t tokens, double ms);
  void record_sampler(double ms) { sampler_.record(ms); }

  // Never falls with `tokens`; always > 0.
  double forward_ms(int64_t tokens) const { return corrected_.ms(tokens); }
  double step_ms(int64_t tokens) const { return forward_ms(tokens) + sampler_ms(); }
  // step_ms without its jumps: along the lower convex hull of the points (and never above step_ms),
  // so that one row costs what its share of the next graphs costs.
  double smooth_ms(int64_t tokens) const { return hull_.ms(tokens) + sampler_ms(); }
  double sampler_ms() const { return sampler_.ms(); }
  double slope_ms() const { return slope_.ms_per_row(); }
  int64_t padded(int64_t tokens) const { return profile_.padded(tokens); }

 private:
  void correct();

  CostCurve profile_;
  CostCurve corrected_;
  CostCurve hull_;  // of corrected_
  SamplerTime sampler_;
  ForwardSlope slope_;
};

}  // namespace tidemill
