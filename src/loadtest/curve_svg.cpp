#include "loadtest/curve_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>

namespace calandra {
namespace {

constexpr double kWidth = 720, kLeft = 76, kRight = 24, kTop = 64, kPanelHeight = 180, kPanelGap = 56, kBottom = 52;

constexpr std::string_view kStyle = R"(
  svg { --ground: #ffffff; --ink: #1f2328; --faint: #6e7781; --grid: #d8dee4; --a: #0969da; --b: #bc4c00; --c: #1a7f37; }
  @media (prefers-color-scheme: dark) {
    svg { --ground: #0d1117; --ink: #e6edf3; --faint: #8d96a0; --grid: #30363d; --a: #58a6ff; --b: #f0883e; --c: #56d364; }
  }
  .ground { fill: var(--ground); }
  text { fill: var(--ink); font: 12px system-ui, sans-serif; }
  .title { font-size: 16px; font-weight: 600; }
  .panel { font-weight: 600; }
  .faint { fill: var(--faint); }
  .end { text-anchor: end; }
  .middle { text-anchor: middle; }
  .grid { stroke: var(--grid); stroke-width: 1; }
  .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
  .s0 { stroke: var(--a); } .s1 { stroke: var(--b); stroke-dasharray: 6 3; } .s2 { stroke: var(--c); stroke-dasharray: 2 3; }
  .p0 { fill: var(--a); } .p1 { fill: var(--b); } .p2 { fill: var(--c); }
)";
constexpr std::size_t kColours = 3;

/// Text between tags: what XML 1.0 has no character for becomes a question mark.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return out;
}

std::string text_at(double x, double y, std::string_view css, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>\n", x, y, css, escaped(text));
}

std::string grid_line(double x1, double y1, double x2, double y2) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"grid\"/>\n", x1, y1, x2, y2);
}

bool is_shown(const std::optional<double>& value) { return value && std::isfinite(*value) && *value > 0; }

/// From figures to places on the page.
class Axis {
 public:
  Axis(double least, double most, double begin, double end, bool is_logarithmic)
      : least_(place(least, is_logarithmic)),
        most_(place(most, is_logarithmic)),
        begin_(begin),
        end_(end),
        is_logarithmic_(is_logarithmic) {}

  double at(double figure) const {
    if (most_ <= least_) return (begin_ + end_) / 2;
    return begin_ + (end_ - begin_) * (place(figure, is_logarithmic_) - least_) / (most_ - least_);
  }

 private:
  static double place(double figure, bool is_logarithmic) { return is_logarithmic ? std::log(figure) : figure; }
  double least_, most_, begin_, end_;
  bool is_logarithmic_;
};

struct Bounds {
  double least = std::numeric_limits<double>::infinity(), most = 0;
};

Bounds bounds_of(const CurvePanel& panel) {
  Bounds bounds;
  for (const CurveSeries& series : panel.series) {
    for (const auto& value : series.values) {
      if (!is_shown(value)) continue;
      bounds.least = std::min(bounds.least, *value);
      bounds.most = std::max(bounds.most, *value);
    }
  }
  if (bounds.most == 0) bounds = {.least = 1, .most = 1};
  return bounds;
}

std::string panel_svg(const Curve& curve, const CurvePanel& panel, const Axis& x, double top) {
  const Bounds bounds = bounds_of(panel);
  const std::vector<double> ticks =
      panel.is_logarithmic ? logarithmic_ticks(bounds.least, bounds.most) : linear_ticks(0, bounds.most, 4);
  const double bottom = top + kPanelHeight;
  const Axis y(ticks.front(), ticks.back(), bottom, top, panel.is_logarithmic);
  std::string svg = text_at(kLeft, top - 12, "panel", panel.title);
  for (const double tick : ticks) {
    svg += grid_line(kLeft, y.at(tick), kWidth - kRight, y.at(tick));
    svg += text_at(kLeft - 8, y.at(tick) + 4, "faint end", fmt::format("{:g}", tick));
  }
  for (const double level : curve.x) {
    svg += grid_line(x.at(level), top, x.at(level), bottom);
    svg += text_at(x.at(level), bottom + 16, "faint middle", fmt::format("{:g}", level));
  }
  std::vector<std::size_t> order(curve.x.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return curve.x[a] < curve.x[b]; });
  double legend = kWidth - kRight;
  for (std::size_t s = panel.series.size(); s-- > 0;) {
    const CurveSeries& series = panel.series[s];
    const std::size_t colour = s % kColours;
    std::string line, points;
    for (const std::size_t i : order) {
      if (i >= series.values.size() || !is_shown(series.values[i])) continue;
      const double px = x.at(curve.x[i]), py = y.at(*series.values[i]);
      line += fmt::format("{}{:.1f},{:.1f}", line.empty() ? "" : " ", px, py);
      points +=
          fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" class=\"p{}\"><title>{} at {:g}: {:.4g}</title></circle>\n",
                      px, py, colour, escaped(series.name), curve.x[i], *series.values[i]);
    }
    svg += fmt::format("<polyline points=\"{}\" class=\"line s{}\"/>\n", line, colour) + points;
    if (panel.series.size() < 2) continue;  // the title says it
    svg += text_at(legend, top - 12, "end", series.name);
    legend -= 7.0 * static_cast<double>(series.name.size()) + 8;
    svg += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"line s{}\"/>\n", legend - 24,
                       top - 16, legend, top - 16, colour);
    legend -= 40;
  }
  return svg;
}

}  // namespace

std::vector<double> linear_ticks(double least, double most, int count) {
  const double rough = (most - least) / std::max(1, count);
  if (!(rough > 0)) return {least, least + 1};
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  const auto begin = std::llround(std::floor(least / step)), end = std::llround(std::ceil(most / step * (1 - 1e-12)));
  std::vector<double> ticks;
  for (auto i = begin; i <= end; ++i) ticks.push_back(static_cast<double>(i) * step);
  return ticks;
}

std::vector<double> logarithmic_ticks(double least, double most) {
  const auto low = std::llround(std::floor(std::log10(least) + 1e-9)), high = std::llround(std::ceil(std::log10(most) - 1e-9));
  std::vector<double> ticks;
  for (auto power = low; power <= high; ++power) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor == 1.0 || high - low <= 2) ticks.push_back(factor * std::pow(10, power));
    }
  }
  // Those beyond the ones next to the figures.
  const auto first = std::upper_bound(ticks.begin(), ticks.end(), least * (1 + 1e-9));
  ticks.erase(ticks.begin(), first == ticks.begin() ? first : first - 1);
  const auto last = std::lower_bound(ticks.begin(), ticks.end(), most * (1 - 1e-9));
  if (last != ticks.end()) ticks.erase(last + 1, ticks.end());
  if (ticks.size() == 1) ticks.push_back(ticks.front() * 2);
  return ticks;
}

std::string curve_svg(const Curve& curve) {
  const double height = kTop + static_cast<double>(curve.panels.size()) * (kPanelHeight + kPanelGap) + kBottom - kPanelGap / 2;
  const auto [least, most] = std::minmax_element(curve.x.begin(), curve.x.end());
  const Axis x(curve.x.empty() ? 1 : *least, curve.x.empty() ? 1 : *most, kLeft + 16, kWidth - kRight - 16, true);
  std::string svg = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:g} {1:g}\" width=\"{0:g}\" height=\"{1:g}\" role=\"img\">\n"
      "<title>{2}</title>\n<style>{3}</style>\n<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n",
      kWidth, height, escaped(curve.title), kStyle);
  svg += text_at(kLeft, 26, "title", curve.title) + text_at(kLeft, 44, "faint", curve.subtitle);
  double top = kTop + 28;
  for (const CurvePanel& panel : curve.panels) {
    svg += panel_svg(curve, panel, x, top);
    top += kPanelHeight + kPanelGap;
  }
  svg += text_at((kLeft + kWidth - kRight) / 2, top - kPanelGap + 36, "middle", curve.x_title);
  return svg + "</svg>\n";
}

}  // namespace calandra
