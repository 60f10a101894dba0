#include "sched/draft_feedback.h"

#include <algorithm>

namespace tidemill {

DraftFeedback::DraftFeedback(int32_t draft_length)
    : positions_(static_cast<size_t>(std::max(draft_length, 0))) {}

void DraftFeedback::record(std::span<const float> confidence, int64_t accepted) {
  const auto reached = std::min<int64_t>(accepted + 1, static_cast<int64_t>(confidence.size()));
  for (int64_t j = 0; j < reached && j < static_cast<int64_t>(positions_.size()); ++j) {
    Position& p = positions_[static_cast<size_t>(j)];
    p.reached = kMemory * p.reached + 1.0;
    p.announced = kMemory * p.announced + confidence[static_cast<size_t>(j)];
    p.accepted = kMemory * p.accepted + (j < accepted ? 1.0 : 0.0);
  }
}

float DraftFeedback::scale(int32_t position) const {
  const Position& p = positions_[static_cast<size_t>(position)];
  if (p.reached < kNeeded || p.announced <= 0.0) return 1.0f;
  return static_cast<float>(std::clamp(p.accepted / p.announced, 0.05, 2.0));
}

void DraftFeedback::correct(std::span<float> confidence) const {
  const size_t length = positions_.size();
  for (size_t i = 0; i < confidence.size(); ++i) {
    confidence[i] = std::clamp(confidence[i] * scale(static_cast<int32_t>(i % length)), 0.0f, 1.0f);
  }
}

void DraftFeedback::compare(Rate with_drafts, Rate without) {
  lost_ = with_drafts.per_ms() < without.per_ms() ? lost_ + 1 : 0;
  if (lost_ < kPatience) return;
  lost_ = 0;
  pause_left_ = kPause;
}

void DraftFeedback::pause_step() { --pause_left_; }

}  // namespace tidemill
