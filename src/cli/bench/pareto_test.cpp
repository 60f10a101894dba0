#include "cli/bench/pareto.h"

#include <gmock/gmock.h>

#include <regex>

namespace tidemill::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<ParetoPoint> kPoints = {
    {"off", 30, 30, "1"},     {"off", 25, 100, "4"},     {"off", 10, 160, "16"},
    {"fixed:5", 60, 60, "1"}, {"fixed:5", 40, 160, "4"}, {"fixed:5", 8, 150, "16"},
    {"dynamic", 60, 60, "1"}, {"dynamic", 35, 140, "4"}, {"dynamic", 12, 190, "16"},
};

TEST(ParetoFront, KeepsWhatNothingBeats) {
  EXPECT_THAT(pareto_front(kPoints), ElementsAre(8, 4, 3));
  EXPECT_TRUE(pareto_front({}).empty());
}

TEST(ParetoFront, OfPointsWithOneEqualValueKeepsTheBetter) {
  const std::vector<ParetoPoint> points = {{"a", 1, 5, ""}, {"a", 2, 5, ""}, {"a", 2, 4, ""}};
  EXPECT_THAT(pareto_front(points), ElementsAre(1));
}

TEST(AxisTicks, AreRoundAndReachTheEnd) {
  EXPECT_THAT(axis_ticks(60, 7), ElementsAre(0, 10, 20, 30, 40, 50, 60));
  EXPECT_THAT(axis_ticks(0.9, 5), ElementsAre(0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0));
  EXPECT_THAT(axis_ticks(14000, 6), ElementsAre(0, 5000, 10000, 15000));
  EXPECT_EQ(axis_ticks(0, 5).front(), 0);
  EXPECT_GT(axis_ticks(-1, 5).size(), 1u);
}

// Every element is closed, every attribute quoted, every & begins an entity.
void expect_well_formed(const std::string& xml) {
  static const std::regex tag(R"re(<(/?)([a-zA-Z]+)((?:\s+[a-zA-Z0-9:-]+="[^"<]*")*)\s*(/?)>|<)re");
  std::vector<std::string> open;
  for (std::sregex_iterator at(xml.begin(), xml.end(), tag), end; at != end; ++at) {
    const std::smatch& match = *at;
    ASSERT_GT(match[2].length(), 0) << "a stray < at " << match.position();
    if (match[4].length() > 0) continue;
    if (match[1].length() == 0) {
      open.push_back(match[2]);
      continue;
    }
    ASSERT_FALSE(open.empty());
    ASSERT_EQ(open.back(), match[2]);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty());
  EXPECT_FALSE(std::regex_search(xml, std::regex("&(?!amp;|lt;|gt;|quot;)")));
}

TEST(ParetoSvg, IsWellFormedAndShowsEverySeries) {
  const std::string svg = pareto_svg(kPoints, "a \"title\" <with> & \x01 marks");
  expect_well_formed(svg);
  EXPECT_THAT(svg, HasSubstr("&lt;with&gt; &amp;   marks"));
  for (const char* text :
       {">off<", ">fixed:5<", ">dynamic<", ">best trade<", ">16<", "tokens/s of one user",
        "tokens/s of the device", "prefers-color-scheme: dark"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
}

TEST(ParetoSvg, OfFewOrOddPoints) {
  expect_well_formed(pareto_svg({}, "none"));
  const std::vector<ParetoPoint> one = {{"off", 0, 0, "1"}};
  const std::string svg = pareto_svg(one, "one");
  expect_well_formed(svg);
  EXPECT_THAT(svg, testing::Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace tidemill::cli
