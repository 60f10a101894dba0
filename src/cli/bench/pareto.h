// The trade between speed for one user and speed for all, as an SVG picture.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tidemill::cli {

struct ParetoPoint {
  std::string series;  // e.g. a draft mode; the legend's text
  double user = 0;     // tokens/s of one user: x
  double device = 0;   // tokens/s of the device: y
  std::string label;   // at the point, e.g. the number of requests in flight
};

// Indices of the points that no other point beats: none has more of one and at least as much of the
// other. From left to right; of equal points the first.
std::vector<size_t> pareto_front(std::span<const ParetoPoint> points);

// About `count` ticks from 0 to at least `most`, at 1, 2 or 5 times a power of ten.
std::vector<double> axis_ticks(double most, int count);

// A complete SVG document without outside parts, for light and dark pages. One colour and marker
// for each series in the order of their first points, a thin line along each, the front drawn
// through all of them.
std::string pareto_svg(std::span<const ParetoPoint> points, std::string_view title);

}  // namespace tidemill::cli
