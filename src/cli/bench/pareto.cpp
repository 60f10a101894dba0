#include "cli/bench/pareto.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace tidemill::cli {
namespace {

// Pixels.
constexpr double kHeight = 520;
constexpr double kLeft = 84, kTop = 52, kBottom = 64;
constexpr double kPlotWidth = 566, kPlotHeight = kHeight - kTop - kBottom;
constexpr double kLegendText = 48;  // from the plot to the names
constexpr double kMarker = 4.5, kCharacter = 6.2, kLegendCharacter = 7, kLabelHeight = 11;

// Told apart by most colour-blind readers (after Okabe and Ito), and readable on white and black.
constexpr std::array kColours = {"#0c7bdc", "#e07b00", "#009e73", "#cc5fa0", "#8c6bd1",
                                 "#d55e00", "#7a8b00", "#17a2b8", "#8a7f70", "#e0457b"};

constexpr std::string_view kStyle = R"(
  text { font-family: system-ui, sans-serif; font-size: 12px; fill: #333; }
  .title { font-size: 15px; font-weight: 600; }
  .label { font-size: 11px; }
  .page { fill: #fff; }
  .grid { stroke: #ddd; stroke-width: 1; }
  .axis { stroke: #555; stroke-width: 1.2; fill: none; }
  .front { stroke: #777; stroke-width: 5; stroke-opacity: 0.35; fill: none; stroke-linejoin: round; }
  .series { stroke-width: 1.3; stroke-opacity: 0.7; fill: none; }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd; }
    .page { fill: #16181c; }
    .grid { stroke: #33363c; }
    .axis { stroke: #aaa; }
    .front { stroke: #ccc; }
  }
)";

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += ' ';  // not allowed in XML
    } else {
      out += c;
    }
  }
  return out;
}

struct Point {
  double x = 0, y = 0;
};

struct Box {
  double left = 0, top = 0, right = 0, bottom = 0;

  bool overlaps(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

// From data to pixels, axes from 0.
struct Scale {
  double x_most = 1, y_most = 1;

  Point at(double x, double y) const {
    return {kLeft + kPlotWidth * x / x_most, kTop + kPlotHeight * (1 - y / y_most)};
  }
};

std::string text(Point at, std::string_view words, std::string_view attributes) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", at.x, at.y, attributes,
                     escape(words));
}

std::string line(Point from, Point to, std::string_view style) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", from.x,
      from.y, to.x, to.y, style);
}

std::string polyline(std::span<const Point> points, std::string_view attributes) {
  if (points.size() < 2) return {};
  std::string out = "<polyline points=\"";
  for (const Point& point : points) out += fmt::format("{:.1f},{:.1f} ", point.x, point.y);
  out.back() = '"';
  return out + fmt::format(" {}/>\n", attributes);
}

// A shape for each series, so that colour is not all that tells them apart.
std::string marker(Point at, size_t series) {
  const char* colour = kColours[series % kColours.size()];
  const auto polygon = [&](std::initializer_list<Point> corners) {
    std::string points;
    for (const Point& corner : corners) {
      points += fmt::format("{:.1f},{:.1f} ", at.x + kMarker * corner.x, at.y + kMarker * corner.y);
    }
    points.pop_back();
    return fmt::format("<polygon points=\"{}\" fill=\"{}\"/>\n", points, colour);
  };
  switch (series % 5) {
    case 1:
      return polygon({{-0.9, -0.9}, {0.9, -0.9}, {0.9, 0.9}, {-0.9, 0.9}});
    case 2:
      return polygon({{0, -1.2}, {1.15, 0.9}, {-1.15, 0.9}});
    case 3:
      return polygon({{0, -1.3}, {1.3, 0}, {0, 1.3}, {-1.3, 0}});
    case 4:
      return polygon({{0, 1.2}, {1.15, -0.9}, {-1.15, -0.9}});
    default:
      return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" fill=\"{}\"/>\n", at.x,
                         at.y, kMarker, colour);
  }
}

// Finds room for labels: each goes to the first place around its point where nothing is yet.
class Labels {
 public:
  explicit Labels(std::span<const Point> points) {
    for (const Point& p : points) {
      taken_.push_back({p.x - kMarker, p.y - kMarker, p.x + kMarker, p.y + kMarker});
    }
  }

  // No label where there is no room: its neighbours in the series tell enough.
  std::string place(Point at, std::string_view words, std::string_view colour) {
    const double width = kCharacter * static_cast<double>(words.size());
    constexpr double kGap = kMarker + 3;
    const std::array<Point, 8> corners = {{{kGap, -kLabelHeight / 2},
                                           {kGap - 2, -kGap - kLabelHeight + 3},
                                           {-width / 2, -kGap - kLabelHeight},
                                           {kGap - 2, kGap - 3},
                                           {-width / 2, kGap},
                                           {-kGap - width, -kLabelHeight / 2},
                                           {-kGap - width + 2, -kGap - kLabelHeight + 3},
                                           {-kGap - width + 2, kGap - 3}}};
    for (const Point& corner : corners) {
      const Box box{at.x + corner.x, at.y + corner.y, at.x + corner.x + width,
                    at.y + corner.y + kLabelHeight};
      const bool inside = box.left >= kLeft && box.right <= kLeft + kPlotWidth + 20 &&
                          box.top >= kTop - 12 && box.bottom <= kTop + kPlotHeight;
      const bool free = std::none_of(taken_.begin(), taken_.end(),
                                     [&](const Box& other) { return box.overlaps(other); });
      if (!inside || !free) continue;
      taken_.push_back(box);
      return text({box.left, box.bottom - 2}, words,
                  fmt::format("class=\"label\" style=\"fill: {}\"", colour));
    }
    return {};
  }

 private:
  std::vector<Box> taken_;
};

std::string tick_text(double value) { return fmt::format("{:.10g}", value); }

std::string axes(const Scale& scale, std::span<const double> xs, std::span<const double> ys,
                 std::string_view title) {
  std::string out;
  for (const double x : xs) {
    out += line(scale.at(x, 0), scale.at(x, scale.y_most), "grid");
    const Point foot = scale.at(x, 0);
    out += text({foot.x, foot.y + 18}, tick_text(x), "text-anchor=\"middle\"");
  }
  for (const double y : ys) {
    out += line(scale.at(0, y), scale.at(scale.x_most, y), "grid");
    const Point foot = scale.at(0, y);
    out += text({foot.x - 8, foot.y + 4}, tick_text(y), "text-anchor=\"end\"");
  }
  const Point origin = scale.at(0, 0);
  const std::array corner = {scale.at(0, scale.y_most), origin, scale.at(scale.x_most, 0)};
  out += polyline(corner, "class=\"axis\"");
  out += text({kLeft, 28}, title, "class=\"title\"");
  out += text({kLeft + kPlotWidth / 2, kHeight - 18}, "tokens/s of one user",
              "text-anchor=\"middle\"");
  const Point middle{22, kTop + kPlotHeight / 2};
  out += text(middle, "tokens/s of the device",
              fmt::format("text-anchor=\"middle\" transform=\"rotate(-90 {:.1f} {:.1f})\"",
                          middle.x, middle.y));
  return out;
}

std::string legend(std::span<const std::string> series) {
  std::string out;
  double y = kTop + 10;
  const double x = kLeft + kPlotWidth + kLegendText - 14;
  for (size_t i = 0; i < series.size(); ++i, y += 20) {
    out += marker({x, y}, i);
    out += text({x + 14, y + 4}, series[i], "");
  }
  out += fmt::format("<path d=\"M {:.1f} {:.1f} h 20\" class=\"front\"/>\n", x - 10, y);
  out += text({x + 14, y + 4}, "best trade", "");
  return out + text({x - 8, y + 28}, "numbers: requests", "class=\"label\"") +
         text({x - 8, y + 42}, "in flight", "class=\"label\"");
}

}  // namespace

std::vector<size_t> pareto_front(std::span<const ParetoPoint> points) {
  std::vector<size_t> order(points.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // From the fastest for one user on; among equals the fastest device first.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (points[a].user != points[b].user) return points[a].user > points[b].user;
    return points[a].device > points[b].device;
  });
  std::vector<size_t> front;
  for (const size_t i : order) {
    if (front.empty() || points[i].device > points[front.back()].device) front.push_back(i);
  }
  std::reverse(front.begin(), front.end());
  return front;
}

std::vector<double> axis_ticks(double most, int count) {
  if (!(most > 0) || !std::isfinite(most)) most = 1;
  const double rough = most / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  for (int i = 0; ticks.empty() || ticks.back() < most; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string pareto_svg(std::span<const ParetoPoint> points, std::string_view title) {
  std::vector<std::string> series;
  double x_most = 0, y_most = 0;
  for (const ParetoPoint& point : points) {
    x_most = std::max(x_most, point.user);
    y_most = std::max(y_most, point.device);
    if (std::find(series.begin(), series.end(), point.series) == series.end()) {
      series.push_back(point.series);
    }
  }
  const std::vector<double> xs = axis_ticks(1.04 * x_most, 7), ys = axis_ticks(1.04 * y_most, 6);
  const Scale scale{xs.back(), ys.back()};
  std::vector<Point> places;
  for (const ParetoPoint& point : points) places.push_back(scale.at(point.user, point.device));

  size_t longest = std::string_view("numbers: requests").size();
  for (const std::string& name : series) longest = std::max(longest, name.size());
  const double width =
      kLeft + kPlotWidth + kLegendText + kLegendCharacter * static_cast<double>(longest) + 8;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" role=\"img\">\n<title>{2}</title>\n<style>{3}</style>\n"
      "<rect class=\"page\" width=\"{0}\" height=\"{1}\"/>\n",
      width, kHeight, escape(title), kStyle);
  out += axes(scale, xs, ys, title);

  std::vector<Point> front;
  for (const size_t i : pareto_front(points)) front.push_back(places[i]);
  out += polyline(front, "class=\"front\"");
  std::string markers;
  std::vector<const char*> colours(points.size());
  for (size_t s = 0; s < series.size(); ++s) {
    std::vector<Point> path;
    for (size_t i = 0; i < points.size(); ++i) {
      if (points[i].series != series[s]) continue;
      path.push_back(places[i]);
      markers += marker(places[i], s);
      colours[i] = kColours[s % kColours.size()];
    }
    out += polyline(path,
                    fmt::format("class=\"series\" stroke=\"{}\"", kColours[s % kColours.size()]));
  }
  out += markers;
  // Points of the front first: their labels matter most.
  Labels labels(places);
  std::vector<size_t> order = pareto_front(points);
  for (size_t i = 0; i < points.size(); ++i) {
    if (std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
  }
  for (const size_t i : order) out += labels.place(places[i], points[i].label, colours[i]);
  return out + legend(series) + "</svg>\n";
}

}  // namespace tidemill::cli
