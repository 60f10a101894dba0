// For tests: a machine's /proc and /sys, with the files a test puts there.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/temp_directory.h"

namespace tidemill {

class TestMachine : public testing::Test {
 protected:
  void put(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }

  TempDirectory root_;
};

}  // namespace tidemill
