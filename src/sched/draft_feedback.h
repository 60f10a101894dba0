// What verification shows about drafting: how far confidences can be taken at their word, and
// whether drafts pay at all.
//
// A drafter announces how likely the target is to accept; how often it does depends on the form of
// verification too (verify_keyed accepts less than rejection sampling), and small drafters are too
// sure of themselves. And a budget search only knows that verifying fewer drafts costs less: that
// making none costs less still is a decision of its own.
//
// Everything here comes from steps that have been verified, none of it from drafts that have not:
// what draft_budget.h says about lossless decisions holds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tidemill {

// One thread.
class DraftFeedback {
 public:
  static constexpr double kMemory = 0.998;  // weight of the past, per verification of a position
  static constexpr double kNeeded = 30.0;   // verifications of a position before it counts
  // Steps that drafts must have lost in a row before they stop, and for how many they do.
  static constexpr int64_t kPatience = 16;
  static constexpr int64_t kPause = 256;

  explicit DraftFeedback(int32_t draft_length);

  // One request's verification: confidences of the drafts that were verified, the first `accepted`
  // of which stood. A position counts if all before it were accepted.
  void record(std::span<const float> confidence, int64_t accepted);
  // Real over announced acceptance of a position, 0.05 to 2; 1 while little is known.
  float scale(int32_t position) const;
  // `confidence`: [requests, draft_length], scaled in place and kept within 0 to 1.
  void correct(std::span<float> confidence) const;

  // Expected tokens and milliseconds of the step that is planned now, with the best number of
  // drafts and with none made at all. Called once per step that decodes, unless pausing.
  struct Rate {
    double tokens = 0.0;
    double ms = 0.0;
    double per_ms() const { return ms > 0.0 ? tokens / ms : 0.0; }
  };
  void compare(Rate with_drafts, Rate without);
  // A step goes by without drafts.
  void pause_step();
  bool pausing() const { return pause_left_ > 0; }

 private:
  struct Position {
    double reached = 0.0;
    double announced = 0.0;
    double accepted = 0.0;
  };
  std::vector<Position> positions_;
  int64_t lost_ = 0;
  int64_t pause_left_ = 0;
};

}  // namespace tidemill
