// Are the drafter's confidences what they claim to be? Temperatures per draft position that correct
// them, a fit of these from records, and a report of claimed against real acceptance.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tidemill {

// confidence of draft position j = sigmoid(z[j] / T[j]), z the drafter's confidence logit. The
// release comes without temperatures: 1 leaves it as trained. Immutable.
class DraftTemperatures {
 public:
  // `values`: one for all positions, or exactly draft_length; finite and > 0.
  // Errors: kInvalidArgument.
  static Result<DraftTemperatures> create(std::span<const double> values, int32_t draft_length);

  // 0 for a NaN: such a draft is verified last.
  float confidence(float z, int32_t position) const;
  const std::vector<double>& values() const { return values_; }

 private:
  explicit DraftTemperatures(std::vector<double> values) : values_(std::move(values)) {}
  std::vector<double> values_;  // [draft_length]
};

// What one verification showed. `verified` of the draft_length drafts were in the step, the first
// `accepted` of them stood.
struct DraftRecord {
  std::span<const float> z;  // [draft_length]; the first `verified` count
  int32_t verified = 0;
  int32_t accepted = 0;
};

// Sequential temperature scaling (arXiv 2607.05147): positions from left to right, each taking the
// temperature of a logarithmic grid from 1/8 to 8 under which the product of confidences up to it
// is closest to the share of prefixes that survived (least expected calibration error in 10 bins;
// of equally good ones the nearest to 1). Only records in which the position was verified count:
// with others, failures would be seen and successes not. A position of fewer than
// kNeededForFit records keeps 1. Offline: O(records * draft_length * grid). Errors:
// kInvalidArgument (a record whose numbers do not fit).
inline constexpr int64_t kNeededForFit = 200;
Result<std::vector<double>> fit_temperatures(std::span<const DraftRecord> records,
                                             int32_t draft_length);

// Counts of predictions in 10 equal bins of confidence.
struct CalibrationBins {
  struct Bin {
    int64_t count = 0;
    int64_t accepted = 0;
    double predicted = 0.0;  // sum of confidences
  };
  std::array<Bin, 10> bins;

  void add(double confidence, bool accepted);
  int64_t count() const;
  double predicted() const;  // mean; 0 without data, as the next two
  double accepted() const;   // share
  // Expected calibration error: |mean confidence - share accepted| of the bins, by count.
  double error() const;
};

// Claimed and real conditional acceptance per task tag and position. A position counts when it was
// reached: it was verified, and all drafts before it stood. One thread.
class CalibrationReport {
 public:
  // Tags come from requests: further ones, and longer ones, share kOtherTag.
  static constexpr size_t kMaxTags = 64;
  static constexpr size_t kMaxTagBytes = 64;
  static constexpr std::string_view kOtherTag = "(other)";
  static constexpr std::string_view kAllTag = "(all)";

  explicit CalibrationReport(int32_t draft_length);

  // `confidence`: [draft_length]; `verified` and `accepted` as in DraftRecord, out of range:
  // clamped.
  void add(std::string_view tag, std::span<const float> confidence, int32_t verified,
           int32_t accepted);

  // Per tag (kAllTag first, then by name) one entry per position.
  struct Tag {
    std::string name;
    std::vector<CalibrationBins> positions;  // [draft_length]
  };
  std::vector<Tag> tags() const;

  // The same as lines "position count predicted accepted error tag", with a header. Positions count
  // from 1.
  std::string text() const;

 private:
  int32_t draft_length_;
  std::vector<CalibrationBins> all_;
  std::map<std::string, std::vector<CalibrationBins>, std::less<>> by_tag_;
};

}  // namespace tidemill
