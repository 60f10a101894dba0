#include "npz.h"

#include <gtest/gtest.h>

namespace tidemill {
namespace {

TEST(Npz, ReadsWhatItWrites) {
  const auto path = std::filesystem::path(testing::TempDir()) / "round_trip.npz";
  write_npz(path, {{"f", {{2, 3}, std::vector<float>{1, -2.5f, 3, 0, 1e-30f, 6}}},
                   {"i", {{4}, std::vector<int32_t>{-1, 0, 1 << 30, 7}}},
                   {"u", {{1, 1, 2}, std::vector<uint16_t>{65535, 0}}},
                   {"none", {{0}, std::vector<float>{}}}});
  const Npz read(path);
  std::filesystem::remove(path);
  EXPECT_EQ(read.array("f").shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(read.values<float>("f"), (std::vector<float>{1, -2.5f, 3, 0, 1e-30f, 6}));
  EXPECT_EQ(read.values<int32_t>("i"), (std::vector<int32_t>{-1, 0, 1 << 30, 7}));
  EXPECT_EQ(read.array("u").shape, (std::vector<int64_t>{1, 1, 2}));
  EXPECT_EQ(read.values<uint16_t>("u"), (std::vector<uint16_t>{65535, 0}));
  EXPECT_EQ(read.array("none").size(), 0);
  EXPECT_FALSE(read.has("x"));
}

}  // namespace
}  // namespace tidemill
