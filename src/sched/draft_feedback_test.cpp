#include "sched/draft_feedback.h"

#include <gtest/gtest.h>

#include <array>

namespace tidemill {
namespace {

TEST(DraftFeedback, ScalesByWhatWasAccepted) {
  DraftFeedback feedback(3);
  const std::array<float, 2> sure = {0.8f, 0.5f};
  EXPECT_EQ(feedback.scale(0), 1.0f);
  // Every second first draft stands; the second one is then accepted always.
  for (int i = 0; i < 400; ++i) feedback.record(sure, i % 2 == 0 ? 2 : 0);
  EXPECT_NEAR(feedback.scale(0), 0.5 / 0.8, 0.02);
  EXPECT_NEAR(feedback.scale(1), 1.0 / 0.5, 0.02);  // counts only when reached
  EXPECT_EQ(feedback.scale(2), 1.0f);               // never verified
  std::array<float, 6> confidence = {0.8f, 0.2f, 0.3f, 1.0f, 0.9f, 1.0f};
  feedback.correct(confidence);
  EXPECT_NEAR(confidence[0], 0.5f, 0.02f);
  EXPECT_NEAR(confidence[1], 0.4f, 0.02f);
  EXPECT_EQ(confidence[2], 0.3f);
  EXPECT_EQ(confidence[4], 1.0f);  // no confidence beyond 1
}

TEST(DraftFeedback, FollowsAChange) {
  DraftFeedback feedback(1);
  const std::array<float, 1> sure = {0.5f};
  for (int i = 0; i < 3000; ++i) feedback.record(sure, 1);
  EXPECT_NEAR(feedback.scale(0), 2.0, 0.01);
  for (int i = 0; i < 3000; ++i) feedback.record(sure, 0);
  EXPECT_LT(feedback.scale(0), 0.1);
}

TEST(DraftFeedback, PausesAfterLosingInARowAndTriesAgain) {
  DraftFeedback feedback(5);
  const DraftFeedback::Rate good{2.0, 10.0};
  const DraftFeedback::Rate bad{1.0, 10.0};
  for (int64_t i = 1; i < DraftFeedback::kPatience; ++i) feedback.compare(bad, good);
  EXPECT_FALSE(feedback.pausing());
  feedback.compare(good, bad);  // one win starts the count afresh
  for (int64_t i = 1; i < DraftFeedback::kPatience; ++i) feedback.compare(bad, good);
  EXPECT_FALSE(feedback.pausing());
  feedback.compare(bad, good);
  EXPECT_TRUE(feedback.pausing());
  for (int64_t i = 0; i < DraftFeedback::kPause; ++i) {
    EXPECT_TRUE(feedback.pausing());
    feedback.pause_step();
  }
  EXPECT_FALSE(feedback.pausing());
}

}  // namespace
}  // namespace tidemill
