// Does the check see what is wrong? Inputs that are right but for one number.
#include "cli/check/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace tidemill::cli {
namespace {

using testing::HasSubstr;

class CheckReplay : public testing::Test {
 protected:
  CheckReplay()
      : config_(*Config::load(TIDEMILL_SOURCE_DIR "/tests/vectors/micro")),
        team_(1),
        backend_(make_reference_backend(team_)),
        layout_(*StateLayout::build(config_, *Topology::build(config_), *backend_)) {
    config_.engram_layer_ids.clear();  // its rows are the same in both forms
    sequence_.slot = 0;
    sequence_.blocks = {5, 4};
    sequence_.tokens.assign(96, 7);
    sequence_.adopted = 128;
    sequence_.replay_from = 96;
    sequence_.decoder_floor = 140;
    const std::vector<int32_t> tokens(90, 8);
    const StepItem item{&sequence_, tokens, Logits::kAll};
    build_step_input(config_, {}, layout_, ReplayForm::kCompact, {&item, 1}, compact_);
    build_step_input(config_, {}, layout_, ReplayForm::kMask, {&item, 1}, mask_);
  }

  // Names of the properties that differ.
  std::vector<std::string> differences() {
    CheckReport report("");
    compare_forms(
        layout_, compact_, mask_, [] { return std::string("here"); }, report);
    std::vector<std::string> names;
    for (const auto& property : report.properties()) {
      if (!property.difference.empty()) names.emplace_back(property.name);
    }
    EXPECT_EQ(report.ok(), names.empty());
    return names;
  }

  Config config_;
  ThreadTeam team_;
  std::unique_ptr<Backend> backend_;
  StateLayout layout_;
  Sequence sequence_;
  StepInput compact_;
  StepInput mask_;
};

TEST_F(CheckReplay, FormsOfOneStepAreEqual) {
  ASSERT_EQ(compact_.all.count, 90);
  ASSERT_EQ(compact_.tail.count, 186 - 140);
  EXPECT_TRUE(differences().empty());
}

// Row 44 of the step is token 140, the first of the tail.
TEST_F(CheckReplay, NamesWhatDiffers) {
  const StepInput compact = compact_;
  const StepInput mask = mask_;
  const auto broken = [&](auto&& change) {
    compact_ = compact;
    mask_ = mask;
    change();
    return differences();
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(broken([&] { ++mask_.tail.position[10]; }),
            Names({"both forms: a row of the mask for every token"}));
  EXPECT_EQ(broken([&] { ++compact_.tail.position[9]; }),
            Names({"both forms: metadata of the tail's rows"}));
  EXPECT_EQ(broken([&] { --mask_.tail.window_begin[44]; }),
            Names({"both forms: visible window keys"}));
  EXPECT_EQ(broken([&] { ++compact_.tail.step_row[0]; }),
            Names({"both forms: visible window keys"}));
  EXPECT_EQ(broken([&] { ++mask_.tail.visible[2][60]; }), Names({"both forms: visible entries"}));
  EXPECT_EQ(broken([&] { mask_.tail.ring_store[80] = -1; }), Names({"both forms: store slots"}));
  EXPECT_EQ(broken([&] { mask_.tail.ring_store[43] = 0; }),
            Names({"mask: rows outside the tail store nothing"}));
  EXPECT_EQ(broken([&] { compact_.logits_row.clear(); }), Names({"both forms: rows with logits"}));
  EXPECT_EQ(broken([&] { mask_.draft_store[0] += 1; }),
            Names({"both forms: rows for the drafter"}));
  EXPECT_EQ(broken([&] { mask_.entries[1].entry_store[3] += 1; }),
            Names({"both forms: the encoder half"}));
}

TEST_F(CheckReplay, ReportsTheFirstDifferenceOfAProperty) {
  CheckReport report("title");
  for (int i = 0; i < 3; ++i) {
    report.expect("one", i == 0, [&] { return fmt::format("number {}", i); });
    report.expect("two", true, [] { return std::string(); });
  }
  report.note("a line");
  EXPECT_FALSE(report.ok());
  EXPECT_THAT(report.to_text(), HasSubstr("3  DIFFERENT: number 1\n"));
  const Json json = report.to_json();
  EXPECT_EQ(json["properties"][1]["checked"], 3);
  EXPECT_TRUE(json["properties"][1]["difference"].is_null());
  EXPECT_EQ(json["notes"][0], "a line");
}

// As released, the bundled model, and one with a window below a block.
TEST_F(CheckReplay, EveryLayoutPasses) {
  for (const std::string name : {"tests/cases/config/released.json", "models/mini/config.json",
                                 "tests/vectors/micro/config.json"}) {
    std::ifstream file(std::filesystem::path(TIDEMILL_SOURCE_DIR) / name);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const auto config = Config::parse(text);
    ASSERT_TRUE(config) << config.error().message;
    const auto report = check_replay_inputs(*config);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_TRUE(report->ok()) << report->to_text();
    EXPECT_GE(report->properties().size(), 13u);
  }
}

}  // namespace
}  // namespace tidemill::cli
