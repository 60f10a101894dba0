#include "sched/victims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace tidemill {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
constexpr double kNoDeadline = std::numeric_limits<double>::infinity();

TEST(Victims, ByPriorityThenSlackThenStart) {
  const VictimCandidate urgent{{1, kNoDeadline, 9}, 1};
  const VictimCandidate old{{2, kNoDeadline, 1}, 1};
  const VictimCandidate young{{2, kNoDeadline, 2}, 1};
  const VictimCandidate hurried{{2, 10.0, 3}, 1};
  EXPECT_THAT(choose_victims({urgent, old, young, hurried}, 1, 0), ElementsAre(2));
  EXPECT_THAT(choose_victims({urgent, old, young, hurried}, 2, 0), ElementsAre(2, 1));
  EXPECT_THAT(choose_victims({urgent, old, young, hurried}, 3, 0), ElementsAre(2, 1, 3));
  EXPECT_THAT(choose_victims({urgent, old, young, hurried}, 4, 0), ElementsAre(2, 1, 3, 0));
}

TEST(Victims, NobodyInVain) {
  const VictimCandidate one{{1, kNoDeadline, 1}, 5};
  EXPECT_THAT(choose_victims({one}, 6, 0), IsEmpty());
  EXPECT_THAT(choose_victims({one}, 1, 2), IsEmpty());
  EXPECT_THAT(choose_victims({}, 1, 0), IsEmpty());
}

TEST(Victims, NoneThatOthersMakeSuperfluous) {
  const VictimCandidate small{{2, kNoDeadline, 2}, 1};
  const VictimCandidate large{{2, kNoDeadline, 1}, 8};
  EXPECT_THAT(choose_victims({small, large}, 8, 1), ElementsAre(1));
  EXPECT_THAT(choose_victims({small, large}, 8, 2), ElementsAre(0, 1));
}

TEST(Victims, EnoughAndMinimal) {
  std::mt19937 random(5);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int i = 0; i < 10000; ++i) {
    std::vector<VictimCandidate> candidates(static_cast<size_t>(draw(0, 8)));
    int64_t all = 0;
    for (size_t k = 0; k < candidates.size(); ++k) {
      candidates[k] = {{static_cast<int32_t>(draw(0, 2)), kNoDeadline, k}, draw(0, 5)};
      all += candidates[k].blocks;
    }
    const int64_t blocks = draw(0, 20), slots = draw(blocks == 0, 3);
    const auto chosen = choose_victims(candidates, blocks, slots);
    const bool possible = all >= blocks && static_cast<int64_t>(candidates.size()) >= slots;
    ASSERT_EQ(!chosen.empty(), possible);
    int64_t yield = 0;
    for (const size_t v : chosen) yield += candidates[v].blocks;
    for (const size_t v : chosen) {
      const bool enough_without = yield - candidates[v].blocks >= blocks &&
                                  static_cast<int64_t>(chosen.size()) - 1 >= slots;
      ASSERT_FALSE(enough_without);
    }
  }
}

}  // namespace
}  // namespace tidemill
