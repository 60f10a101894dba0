#include "cli/bench/workload.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/atomic_file.h"
#include "base/temp_directory.h"

namespace tidemill::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

LengthDistribution lengths(std::string_view text) {
  auto parsed = LengthDistribution::parse("--prompt", text);
  EXPECT_TRUE(parsed) << text;
  return parsed ? *parsed : LengthDistribution();
}

std::vector<int64_t> sorted_draws(std::string_view text, size_t count) {
  BenchRandom random(1);
  std::vector<int64_t> draws(count);
  const LengthDistribution distribution = lengths(text);
  for (int64_t& draw : draws) draw = distribution.draw(random);
  std::sort(draws.begin(), draws.end());
  return draws;
}

TEST(LengthDistribution, Fixed) {
  EXPECT_THAT(sorted_draws("fixed:7", 2), ElementsAre(7, 7));
  EXPECT_EQ(lengths("fixed:7").longest(), 7);
  EXPECT_EQ(lengths("fixed:7").text(), "fixed:7");
}

TEST(LengthDistribution, UniformHasBothEnds) {
  const auto draws = sorted_draws("uniform:3-5", 300);
  EXPECT_EQ(draws.front(), 3);
  EXPECT_EQ(draws[150], 4);
  EXPECT_EQ(draws.back(), 5);
}

TEST(LengthDistribution, LognormalHasItsMedianAndALongTail) {
  const auto draws = sorted_draws("lognormal:200,0.8", 4000);
  EXPECT_NEAR(static_cast<double>(draws[2000]), 200, 12);
  EXPECT_NEAR(static_cast<double>(draws[3364]), 200 * std::exp(0.8), 40);  // one sigma
  EXPECT_LE(draws.back(), lengths("lognormal:200,0.8").longest());
  EXPECT_GE(draws.front(), 1);
}

TEST(LengthDistribution, TableFollowsItsWeights) {
  const auto draws = sorted_draws("table:100=3,10=1", 4000);
  EXPECT_NEAR(static_cast<double>(std::count(draws.begin(), draws.end(), 10)), 1000, 90);
  EXPECT_NEAR(static_cast<double>(std::count(draws.begin(), draws.end(), 100)), 3000, 90);
  EXPECT_EQ(lengths("table:100=3,10=1").longest(), 100);
}

TEST(LengthDistribution, RefusesOthersWithFlagAndRange) {
  for (const char* text : {"",
                           "7",
                           "fixed",
                           "fixed:",
                           "fixed:0",
                           "fixed:-1",
                           "fixed:1.5",
                           "fixed:99999999",
                           "uniform:5",
                           "uniform:5-3",
                           "uniform:0-3",
                           "lognormal:5",
                           "lognormal:5,-1",
                           "lognormal:5,nan",
                           "lognormal:5,9",
                           "table:",
                           "table:5",
                           "table:5=0",
                           "table:5=-1",
                           "table:5=1,,6=1",
                           "poisson:5"}) {
    const auto parsed = LengthDistribution::parse("--prompt", text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(parsed.error().message, HasSubstr("--prompt"));
    EXPECT_THAT(parsed.error().message, HasSubstr("from 1 to"));
  }
}

const TokenSource kTokens{.vocabulary = 50, .excluded = {0, 1}};

TEST(SyntheticWorkload, SharesTheStartOfEveryPrompt) {
  const auto items = synthetic_workload({.requests = 20,
                                         .prompt = lengths("uniform:40-80"),
                                         .output = lengths("fixed:9"),
                                         .shared_prefix = 0.5,
                                         .seed = 3},
                                        kTokens);
  ASSERT_EQ(items.size(), 20u);
  for (const WorkItem& item : items) {
    EXPECT_GE(item.prompt.size(), 40u);
    EXPECT_LE(item.prompt.size(), 80u);
    EXPECT_TRUE(std::equal(item.prompt.begin(), item.prompt.begin() + 20, items[0].prompt.begin()));
    EXPECT_EQ(item.output_tokens, 9);
    EXPECT_TRUE(item.exact);
    EXPECT_GE(*std::min_element(item.prompt.begin(), item.prompt.end()), 2);
    EXPECT_LT(*std::max_element(item.prompt.begin(), item.prompt.end()), 50);
  }
  EXPECT_NE(items[0].prompt.back(), items[1].prompt.back());
}

TEST(SyntheticWorkload, DependsOnTheSeedAlone) {
  SyntheticWorkload spec{
      .requests = 2, .prompt = lengths("fixed:30"), .output = lengths("fixed:1")};
  const auto first = synthetic_workload(spec, kTokens);
  EXPECT_EQ(first[1].prompt, synthetic_workload(spec, kTokens)[1].prompt);
  spec.seed = 1;
  EXPECT_NE(first[1].prompt, synthetic_workload(spec, kTokens)[1].prompt);
}

class WorkloadFile : public testing::Test {
 protected:
  Result<std::vector<WorkItem>> read(std::string_view text) {
    EXPECT_TRUE(write_file(path_, text));
    const auto letters = [](std::string_view prompt) {
      return std::vector<int32_t>(prompt.begin(), prompt.end());
    };
    return read_workload(path_, lengths("fixed:4"), 1, kTokens, letters);
  }

  TempDirectory directory_;
  std::filesystem::path path_ = directory_.path() / "work.jsonl";
};

TEST_F(WorkloadFile, ReadsTheThreeForms) {
  const auto items = read(
      "{\"prompt_tokens\": [5, 6]}\n\n"
      "{\"prompt_length\": 8, \"output_length\": 3}\r\n"
      "{\"prompt\": \"ab\", \"user\": \"ignored\"}");
  ASSERT_TRUE(items) << items.error().message;
  ASSERT_EQ(items->size(), 3u);
  EXPECT_THAT((*items)[0].prompt, ElementsAre(5, 6));
  EXPECT_EQ((*items)[0].output_tokens, 4);
  EXPECT_FALSE((*items)[0].exact);
  EXPECT_EQ((*items)[1].prompt.size(), 8u);
  EXPECT_EQ((*items)[1].output_tokens, 3);
  EXPECT_TRUE((*items)[1].exact);
  EXPECT_EQ((*items)[1].line, 3);
  EXPECT_THAT((*items)[2].prompt, ElementsAre('a', 'b'));
}

TEST_F(WorkloadFile, NamesTheLineOfWhatIsWrong) {
  for (const char* line :
       {"{", "[1, 2]", "{}", "{\"prompt\": 5}", "{\"prompt\": \"\"}", "{\"prompt_tokens\": []}",
        "{\"prompt_tokens\": [50]}", "{\"prompt_tokens\": [-1]}", "{\"prompt_tokens\": [1.5]}",
        "{\"prompt_tokens\": 5}", "{\"prompt_length\": 0}", "{\"prompt_length\": 1e3}",
        "{\"prompt_length\": 99999999999999999999999}", "{\"prompt\": \"a\", \"prompt_length\": 1}",
        "{\"prompt\": \"a\", \"output_length\": 0}"}) {
    const auto items = read(std::string("{\"prompt\": \"a\"}\n\n") + line + "\n");
    ASSERT_FALSE(items) << line;
    EXPECT_THAT(items.error().message, HasSubstr("work.jsonl:3: ")) << line;
  }
}

TEST_F(WorkloadFile, AnEmptyOrMissingFileIsAnError) {
  EXPECT_THAT(read("\n \n").error().message, HasSubstr("holds no requests"));
  const auto none = read_workload(directory_.path() / "none", lengths("fixed:1"), 1, kTokens, {});
  EXPECT_EQ(none.error().code, ErrorCode::kFileNotFound);
}

TEST(PoissonArrivals, HaveTheirRateAndTheirSpread) {
  const auto times = poisson_arrivals(4001, 20.0, 1);
  EXPECT_EQ(times[0], 0);
  EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
  EXPECT_NEAR(times.back(), 200, 10);
  double squares = 0;
  for (size_t i = 1; i < times.size(); ++i) squares += std::pow(times[i] - times[i - 1], 2);
  EXPECT_NEAR(squares / 4000, 2.0 / (20 * 20), 5e-4);  // of an exponential: 2 / rate^2
}

TEST(CheckLengths, NamesTheFirstThatDoesNotFit) {
  std::vector<WorkItem> items(2);
  items[0].prompt = {1, 2};
  items[1].prompt = {1, 2, 3};
  EXPECT_TRUE(check_lengths(items, 4));
  EXPECT_THAT(check_lengths(items, 3).error().message, HasSubstr("request 1 needs 3"));
  items[1].line = 7;
  EXPECT_THAT(check_lengths(items, 3).error().message, HasSubstr("line 7"));
}

}  // namespace
}  // namespace tidemill::cli
