// Finds the first of several markers in a stream, byte by byte.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace tidemill {

struct Marker {
  std::string text;             // not empty
  bool takes_newlines = false;  // newlines before the text belong to it; the text holds none
};

// The marker that ends first wins; of several that end at the same byte, the one listed first.
// One step costs O(markers) amortised, whatever the bytes (Knuth-Morris-Pratt per marker).
class MarkerScanner {
 public:
  struct Match {
    size_t marker;  // index
    size_t size;    // bytes of the match, newlines included, up to the byte just fed
  };

  explicit MarkerScanner(std::vector<Marker> markers = {});

  // After a match the scanner starts afresh.
  std::optional<Match> step(char byte);

  // Length of the longest suffix of the bytes fed that may begin a marker.
  size_t held() const;

 private:
  struct Progress {
    Marker marker;
    std::vector<size_t> fallback;  // by matched - 1: the next shorter match with the same end
    size_t matched = 0;            // bytes of marker.text, fewer than all
    size_t newlines = 0;           // directly before them

    bool step(char byte);
  };
  std::vector<Progress> markers_;
};

}  // namespace tidemill
