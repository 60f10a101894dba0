#include "cli/serve/settings.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/temp_directory.h"

namespace tidemill::cli {
namespace {

class SettingsTest : public ::testing::Test {
 protected:
  SettingsTest() {
    command_ = app_.add_subcommand("serve", "");
    command_->add_option("--port", port)->check(CLI::Range(0, 65535));
    command_->add_option("--max-num-seqs,--sequences", sequences);
    command_->add_option("--names", names);
    command_->add_flag("--quiet", quiet);
    command_->add_option("--config", config);
  }
  ~SettingsTest() override {
    ::unsetenv("TIDEMILL_PORT");
    ::unsetenv("TIDEMILL_NAMES");
  }

  Result<Settings> apply(std::vector<std::string> arguments, const std::string& toml = "") {
    arguments.insert(arguments.begin(), "serve");
    std::reverse(arguments.begin(), arguments.end());
    app_.parse(arguments);
    std::filesystem::path file;
    if (!toml.empty()) {
      file = directory_.path() / "serve.toml";
      std::ofstream(file) << toml;
    }
    return Settings::apply(*command_, file);
  }

  CLI::App app_;
  CLI::App* command_;
  TempDirectory directory_;
  int port = 8000;
  int sequences = 16;
  std::vector<std::string> names;
  bool quiet = false;
  std::string config;
};

TEST_F(SettingsTest, TheFileFillsIn) {
  const auto settings =
      apply({}, "port = 9000\nsequences = 3\nnames = [\"a\", \"b\"]\nquiet = true");
  ASSERT_TRUE(settings) << settings.error().message;
  EXPECT_EQ(port, 9000);
  EXPECT_EQ(sequences, 3);
  EXPECT_EQ(names, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(quiet);
  EXPECT_NE(settings->describe(*command_).find("port = 9000  (serve.toml)"), std::string::npos);
}

TEST_F(SettingsTest, FlagsThenEnvironmentThenFile) {
  ::setenv("TIDEMILL_PORT", "9001", 1);
  ::setenv("TIDEMILL_NAMES", "x,y", 1);
  const auto settings = apply({"--port", "9002"}, "port = 9000\nnames = [\"a\"]");
  ASSERT_TRUE(settings) << settings.error().message;
  EXPECT_EQ(port, 9002);
  EXPECT_EQ(names, (std::vector<std::string>{"x", "y"}));
}

TEST_F(SettingsTest, WhatIsWrongIsNamedWithItsPlace) {
  const std::string file = (directory_.path() / "serve.toml").string();
  const auto unknown = apply({}, "\nprot = 9000");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().message, file + ":2: prot: no such option (tidemill serve --help)");
  const auto range = apply({}, "port = 70000");
  ASSERT_FALSE(range);
  EXPECT_TRUE(range.error().message.starts_with(file + ":1: port: ")) << range.error().message;
  EXPECT_FALSE(apply({}, "port = {a = 1}"));
  EXPECT_FALSE(apply({}, "port = ["));
  EXPECT_FALSE(apply({}, "config = \"other.toml\""));
}

TEST_F(SettingsTest, TheEnvironmentIsCheckedToo) {
  ::setenv("TIDEMILL_PORT", "many", 1);
  const auto settings = apply({});
  ASSERT_FALSE(settings);
  EXPECT_TRUE(settings.error().message.starts_with("TIDEMILL_PORT: ")) << settings.error().message;
}

}  // namespace
}  // namespace tidemill::cli
