#include "model/page_parts.h"

#include <gtest/gtest.h>

namespace tidemill {
namespace {

constexpr size_t kMi = size_t{1} << 20;

// Only addresses count.
const std::byte* at(size_t address) { return reinterpret_cast<const std::byte*>(address); }

std::string parts_of(const PageParts& pages, size_t begin, size_t end) {
  std::string text;
  for (size_t place = begin; place < end; place += PageParts::kPage) {
    text += std::to_string(pages.part_of(at(place)));
  }
  return text;
}

class PagePartsOf : public testing::Test {
 protected:
  const NodeShares two_{8, {{0, {0, 1, 2, 3}}, {1, {4, 5, 6, 7}}}};
  const NodeShares uneven_{12, {{0, {0, 1, 2, 3}}, {1, {4, 5, 6, 7, 8, 9, 10, 11}}}};
};

TEST_F(PagePartsOf, ATensorIsDividedLikeItsRows) {
  PageParts pages({at(64 * kMi), 36 * kMi}, two_);
  pages.add({at(64 * kMi), 16 * kMi});
  pages.add({at(80 * kMi), 20 * kMi});
  EXPECT_EQ(parts_of(pages, 64 * kMi, 100 * kMi), "000011110000011111");
  PageParts thirds({at(64 * kMi), 36 * kMi}, uneven_);
  thirds.add({at(64 * kMi), 36 * kMi});
  EXPECT_EQ(parts_of(thirds, 64 * kMi, 100 * kMi), "000000111111111111");
}

TEST_F(PagePartsOf, APageGoesToThePartWithItsMiddle) {
  PageParts pages({at(64 * kMi), 16 * kMi}, two_);
  pages.add({at(64 * kMi), 6 * kMi});      // the middle of the second page is node 1's
  pages.add({at(70 * kMi), 2 * kMi + 2});  // the middle is node 0's by one byte
  pages.add({at(72 * kMi + 2), kMi - 2});  // ends before one
  pages.add({at(73 * kMi), 6 * kMi});      // the last one is behind it
  EXPECT_EQ(parts_of(pages, 64 * kMi, 80 * kMi), "01100011");
}

TEST_F(PagePartsOf, MemoryMayBeginAndEndInsideAPage) {
  PageParts pages({at(65 * kMi + 4096), 3 * kMi}, two_);
  pages.add({at(65 * kMi + 4096), 3 * kMi});
  EXPECT_EQ(pages.part_of(at(65 * kMi + 4096)), 0u);
  EXPECT_EQ(pages.part_of(at(68 * kMi + 4095)), 1u);
  EXPECT_EQ(PageParts::bytes_to_page_end(at(65 * kMi + 4096)), kMi - 4096);
  EXPECT_EQ(PageParts::bytes_to_page_end(at(66 * kMi)), 2 * kMi);
}

TEST_F(PagePartsOf, OnePartHasAll) {
  const NodeShares one;
  PageParts pages({at(64 * kMi), 16 * kMi}, one);
  pages.add({at(64 * kMi), 16 * kMi});
  EXPECT_EQ(parts_of(pages, 64 * kMi, 80 * kMi), "00000000");
}

}  // namespace
}  // namespace tidemill
