#include "base/clock.h"

#include <gtest/gtest.h>

namespace tidemill {
namespace {

using namespace std::chrono_literals;

TEST(Deadline, CountsDownToZero) {
  const Clock::time_point now = Clock::now();
  const Deadline deadline = Deadline::after(10ms, now);
  EXPECT_EQ(deadline.remaining(now), 10ms);
  EXPECT_FALSE(deadline.expired(now + 9ms));
  EXPECT_TRUE(deadline.expired(now + 10ms));
  EXPECT_EQ(deadline.remaining(now + 11ms), 0ns);
  EXPECT_TRUE(Deadline::after(-1ms, now).expired(now));
}

TEST(Deadline, NeverDoesNotOverflow) {
  EXPECT_FALSE(Deadline::never().expired());
  EXPECT_EQ(Deadline::never().remaining(), std::chrono::nanoseconds::max());
  EXPECT_TRUE(Deadline::after(std::chrono::nanoseconds::max()).is_never());
}

TEST(Deadline, EarlierOfTwo) {
  const Clock::time_point now = Clock::now();
  const Deadline soon = Deadline::after(1s, now);
  EXPECT_EQ(soon.earlier(Deadline::never()).time(), now + 1s);
  EXPECT_EQ(Deadline::never().earlier(soon).time(), now + 1s);
}

}  // namespace
}  // namespace tidemill
