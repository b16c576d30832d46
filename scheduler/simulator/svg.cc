#include "scheduler/simulator/svg.h"

#include <algorithm>
#include <array>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace sluice::scheduler {
namespace {

// The colours of Okabe and Ito, which people with any colour vision can tell apart.
constexpr std::array<const char*, 6> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#000000"};

struct Panel {
  std::string label;
  double left, top, width, height;
  double x_low, x_high, y_low, y_high;

  double X(double x) const { return left + (x - x_low) / (x_high - x_low) * width; }
  double Y(double y) const { return top + height - (y - y_low) / (y_high - y_low) * height; }
};

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

void Axes(std::string& svg, const Panel& panel) {
  absl::StrAppendFormat(&svg, "<text x='%.0f' y='%.0f' font-weight='bold'>%s</text>\n", panel.left, panel.top - 10,
                        panel.label);
  for (int i = 0; i <= 4; ++i) {
    const double y = panel.y_low + (panel.y_high - panel.y_low) * i / 4;
    absl::StrAppendFormat(&svg, "<line x1='%.1f' x2='%.1f' y1='%.1f' y2='%.1f' stroke='#dddddd'/>\n", panel.left,
                          panel.left + panel.width, panel.Y(y), panel.Y(y));
    absl::StrAppendFormat(&svg, "<text x='%.1f' y='%.1f' text-anchor='end'>%.4g</text>\n", panel.left - 6,
                          panel.Y(y) + 4, y * 100);
    const double x = panel.x_low + (panel.x_high - panel.x_low) * i / 4;
    absl::StrAppendFormat(&svg, "<text x='%.1f' y='%.1f' text-anchor='middle'>%.4g</text>\n", panel.X(x),
                          panel.top + panel.height + 18, x * 100);
  }
  absl::StrAppendFormat(&svg, "<text x='%.1f' y='%.1f' text-anchor='middle'>GPUs requested, %% of the cluster</text>\n",
                        panel.left + panel.width / 2, panel.top + panel.height + 36);
}

void Curve(std::string& svg, const Panel& panel, const NamedCurve& curve, const char* colour,
           const std::function<double(const Point&)>& value) {
  std::string points;
  for (const Point& point : curve.points) {
    if (point.arrived < panel.x_low || point.arrived > panel.x_high || value(point) < panel.y_low) continue;
    absl::StrAppendFormat(&points, "%.1f,%.1f ", panel.X(point.arrived), panel.Y(std::min(value(point), panel.y_high)));
  }
  absl::StrAppendFormat(&svg, "<polyline fill='none' stroke-width='1.8' stroke='%s' points='%s'/>\n", colour, points);
}

}  // namespace

std::string Svg(const std::string& title, const std::vector<NamedCurve>& curves) {
  double max_arrived = 1, max_fragment = 0.04;
  for (const NamedCurve& curve : curves) {
    for (const Point& point : curve.points) {
      max_arrived = std::max(max_arrived, point.arrived);
      max_fragment = std::max(max_fragment, point.fragment);
    }
  }
  const Panel allocated{"GPUs allocated, %", 60, 70, 380, 300, 0.8, max_arrived, 0.8, 1.0};
  const Panel fragment{"Free GPUs that the next request cannot use, % (expected)",
                       520,
                       70,
                       380,
                       300,
                       0,
                       max_arrived,
                       0,
                       max_fragment * 1.05};
  std::string svg =
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 930 460' font-family='sans-serif' font-size='12'>\n"
      "<rect width='930' height='460' fill='white'/>\n";
  absl::StrAppendFormat(&svg, "<text x='60' y='28' font-size='16' font-weight='bold'>%s</text>\n", Escaped(title));
  Axes(svg, allocated);
  Axes(svg, fragment);
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const char* colour = kColours[i % kColours.size()];
    Curve(svg, allocated, curves[i], colour, [](const Point& point) { return point.allocated; });
    Curve(svg, fragment, curves[i], colour, [](const Point& point) { return point.fragment; });
    const double x = 60 + 150.0 * static_cast<double>(i);
    absl::StrAppendFormat(&svg, "<line x1='%.0f' x2='%.0f' y1='438' y2='438' stroke-width='3' stroke='%s'/>\n", x,
                          x + 22, colour);
    absl::StrAppendFormat(&svg, "<text x='%.0f' y='442'>%s</text>\n", x + 28, Escaped(curves[i].name));
  }
  return svg + "</svg>\n";
}

}  // namespace sluice::scheduler
