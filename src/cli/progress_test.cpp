#include "cli/progress.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tidemill::cli {
namespace {

TEST(DrawBar, ClampsTheFraction) {
  EXPECT_EQ(draw_bar("loading", 0), "loading [                              ]   0 %");
  EXPECT_EQ(draw_bar("loading", 0.5), "loading [###############               ]  50 %");
  EXPECT_EQ(draw_bar("loading", 7), "loading [##############################] 100 %");
  EXPECT_EQ(draw_bar("x", -1), draw_bar("x", 0));
  EXPECT_EQ(draw_bar("x", std::nan("")), draw_bar("x", 0));
}

TEST(ProgressBar, IsSilentWithoutATerminal) {
  testing::internal::CaptureStderr();
  {
    ProgressBar bar("loading");
    bar.update(0.5);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace tidemill::cli
