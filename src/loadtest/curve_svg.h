#pragma once
// A picture of a curve: panels below each other over one logarithmic axis, in one file that needs nothing else and is readable on
// light and dark ground.

#include <optional>
#include <string>
#include <vector>

namespace calandra {

struct CurveSeries {
  std::string name;
  std::vector<std::optional<double>> values;  ///< one for each x; unset or not above 0: no point
};

struct CurvePanel {
  std::string title;  ///< with the unit
  bool is_logarithmic = false;
  std::vector<CurveSeries> series;
};

struct Curve {
  std::string title, subtitle;
  std::string x_title;
  std::vector<double> x;  ///< above 0, in any order
  std::vector<CurvePanel> panels;
};

std::string curve_svg(const Curve& curve);

/// From at most `least` to at least `most`, in steps of 1, 2 or 5 times a power of ten: about `count` numbers.
std::vector<double> linear_ticks(double least, double most, int count);
/// 1, 2 and 5 times powers of ten from at most `least` (above 0) to at least `most`; over more than two powers the powers alone.
std::vector<double> logarithmic_ticks(double least, double most);

}  // namespace calandra
