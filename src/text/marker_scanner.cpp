#include "text/marker_scanner.h"

#include <algorithm>
#include <utility>

namespace tidemill {
namespace {

std::vector<size_t> fallback_table(const std::string& text) {
  std::vector<size_t> table(text.size(), 0);
  for (size_t i = 1, matched = 0; i < text.size(); ++i) {
    while (matched > 0 && text[matched] != text[i]) matched = table[matched - 1];
    if (text[matched] == text[i]) ++matched;
    table[i] = matched;
  }
  return table;
}

}  // namespace

MarkerScanner::MarkerScanner(std::vector<Marker> markers) {
  markers_.reserve(markers.size());
  for (Marker& marker : markers) {
    std::vector<size_t> fallback = fallback_table(marker.text);
    markers_.push_back({std::move(marker), std::move(fallback)});
  }
}

bool MarkerScanner::Progress::step(char byte) {
  const size_t before = matched;
  while (matched > 0 && marker.text[matched] != byte) matched = fallback[matched - 1];
  if (marker.text[matched] == byte) ++matched;

  if (marker.takes_newlines && matched <= before) {  // another start, or none
    const bool run_goes_on = before == 0 && byte == '\n';
    newlines = run_goes_on ? newlines + 1 : (byte == '\n' ? 1 : 0);
  }
  return matched == marker.text.size();
}

std::optional<MarkerScanner::Match> MarkerScanner::step(char byte) {
  std::optional<Match> match;
  for (size_t i = 0; i < markers_.size(); ++i) {
    if (!markers_[i].step(byte) || match) continue;
    match = Match{i, markers_[i].newlines + markers_[i].matched};
  }
  if (match) {
    for (Progress& progress : markers_) progress.matched = progress.newlines = 0;
  }
  return match;
}

size_t MarkerScanner::held() const {
  size_t longest = 0;
  for (const Progress& progress : markers_) {
    longest = std::max(longest, progress.newlines + progress.matched);
  }
  return longest;
}

}  // namespace tidemill
