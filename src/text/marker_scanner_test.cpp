#include "text/marker_scanner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace tidemill {
namespace {

// By the definition: the longest suffix of `seen` that is newlines* + a beginning of the text.
size_t longest_beginning(const std::string& seen, const Marker& marker, bool whole) {
  size_t longest = 0;
  for (size_t matched = whole ? marker.text.size() : 0; matched <= marker.text.size(); ++matched) {
    if (!whole && matched == marker.text.size()) break;
    if (matched > seen.size()) break;
    if (seen.compare(seen.size() - matched, matched, marker.text, 0, matched) != 0) continue;
    size_t size = matched;
    if (marker.takes_newlines) {
      while (size < seen.size() && seen[seen.size() - size - 1] == '\n') ++size;
    }
    longest = std::max(longest, size);
  }
  return longest;
}

TEST(MarkerScanner, AgreesWithItsDefinition) {
  const std::vector<Marker> markers = {{"aabaaa<", false},
                                       {"\n\na", false},
                                       {"<a", true},
                                       {"aaa<", false},  // ends with the first one, too
                                       {"<<b", true}};
  std::mt19937 random(1);
  MarkerScanner scanner(markers);
  std::string seen;  // since the last match
  for (int i = 0; i < 200'000; ++i) {
    const char byte = "ab\n<"[random() % 4];
    seen += byte;
    const auto match = scanner.step(byte);
    size_t expected_marker = markers.size();
    size_t held = 0;
    for (size_t m = markers.size(); m-- > 0;) {
      if (longest_beginning(seen, markers[m], true) > 0) expected_marker = m;
      held = std::max(held, longest_beginning(seen, markers[m], false));
    }
    ASSERT_EQ(match.has_value(), expected_marker < markers.size()) << seen;
    if (match) {
      EXPECT_EQ(match->marker, expected_marker);
      EXPECT_EQ(match->size, longest_beginning(seen, markers[expected_marker], true));
      EXPECT_EQ(scanner.held(), 0u);
      seen.clear();
    } else {
      ASSERT_EQ(scanner.held(), held) << seen;
    }
  }
}

TEST(MarkerScanner, WithoutMarkersNothingIsHeld) {
  MarkerScanner scanner;
  EXPECT_FALSE(scanner.step('a'));
  EXPECT_EQ(scanner.held(), 0u);
}

}  // namespace
}  // namespace tidemill
