#include "cli/bench/convert.h"

#include <gmock/gmock.h>

#include "base/atomic_file.h"
#include "base/temp_directory.h"

namespace tidemill::cli {
namespace {

using testing::HasSubstr;

std::string cell(std::string_view drafts, double tau, std::string_view kind = "decode") {
  return fmt::format(
      "{{\"record\": \"cell\", \"kind\": \"{}\", \"drafts\": \"{}\", \"concurrency\": 8, "
      "\"prompt_tokens_each\": 64, \"tokens_per_second\": {{\"median\": 100.0}}, "
      "\"tokens_per_step\": {}}}\n",
      kind, drafts, tau);
}

class ConvertRecords : public testing::Test {
 protected:
  Result<std::vector<ConvertedCell>> convert(std::string_view text, double acceptance,
                                             std::string_view drafts = "") {
    EXPECT_TRUE(write_file(path_, text));
    return convert_records(path_, acceptance, drafts);
  }

  TempDirectory directory_;
  std::filesystem::path path_ = directory_ / "records.jsonl";
};

TEST(TokensPerStep, OfThePublishedSetting) {
  EXPECT_DOUBLE_EQ(tokens_per_step(3, 0.75), 3.25);
  EXPECT_DOUBLE_EQ(tokens_per_step(0, 0.75), 1);
}

TEST_F(ConvertRecords, RatesFollowTau) {
  const auto cells = convert("{\"record\": \"machine\"}\n" + cell("fixed:3", 1.3) + cell("off", 1) +
                                 cell("dynamic", 2, "workload"),
                             0.75);
  ASSERT_TRUE(cells) << cells.error().message;
  ASSERT_EQ(cells->size(), 2u);
  EXPECT_EQ((*cells)[0].line, 2);
  EXPECT_EQ((*cells)[0].length, 3);
  EXPECT_NEAR((*cells)[0].recorded_acceptance, 0.1, 1e-12);
  EXPECT_DOUBLE_EQ((*cells)[0].tau, 3.25);
  EXPECT_DOUBLE_EQ((*cells)[0].rate, 250);
  EXPECT_DOUBLE_EQ((*cells)[1].rate, 100);  // nothing to accept
}

TEST_F(ConvertRecords, DynamicDataIsRefused) {
  for (const char* policy : {"dynamic", "dynamic-lagged", "dynamic-early-stop", "fixed:x"}) {
    const auto cells = convert(cell("fixed:3", 1.3) + cell(policy, 1.5), 0.75);
    ASSERT_FALSE(cells) << policy;
    EXPECT_EQ(cells.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(cells.error().message, HasSubstr(fmt::format("records.jsonl:2: recorded with "
                                                             "drafts \"{}\"",
                                                             policy)));
  }
  EXPECT_TRUE(convert(cell("fixed:3", 1.3) + cell("dynamic", 1.5), 0.75, "fixed:3"));
}

TEST_F(ConvertRecords, NamesTheLineOfWhatIsWrong) {
  for (const char* line : {"{", "[]", "{}", "{\"record\": \"cell\", \"kind\": \"decode\"}"}) {
    const auto cells = convert(cell("off", 1) + line, 0.5);
    ASSERT_FALSE(cells) << line;
    EXPECT_THAT(cells.error().message, HasSubstr("records.jsonl:2: "));
  }
  EXPECT_THAT(convert("{\"record\": \"machine\"}", 0.5).error().message, HasSubstr("no decode"));
  EXPECT_THAT(convert(cell("off", 1), 0.5, "fixed:2").error().message, HasSubstr("of fixed:2"));
}

}  // namespace
}  // namespace tidemill::cli
