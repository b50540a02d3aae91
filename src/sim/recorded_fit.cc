#include "sim/recorded_fit.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"

namespace distca {
namespace {

constexpr size_t kConstants = 5;
using Point = std::array<double, kConstants>;  // logarithms of the constants

/// Errors well below it count by their square, larger ones as they are: one odd row moves little.
constexpr double kSmooth = 0.01;

/// Where the search begins: round figures near what such devices do.
constexpr Point kStart = {0.6, 330e12, 50e9, 1.2e-10, 0.02};

FittedConstants constants_at(const Point& point, double startup_keys) {
  return {startup_keys,       std::exp(point[0]), std::exp(point[1]),
          std::exp(point[2]), std::exp(point[3]), std::exp(point[4])};
}

struct Vertex {
  double value;
  Point point;
  friend bool operator<(const Vertex& a, const Vertex& b) { return a.value < b.value; }
};

/// Nelder and Mead's simplex search with its usual coefficients.
template <typename Function>
Point minimize(const Function& function, const Point& start) {
  std::array<Vertex, kConstants + 1> simplex;
  for (size_t i = 0; i < simplex.size(); ++i) {
    simplex[i].point = start;
    if (i > 0) simplex[i].point[i - 1] += 0.1;
    simplex[i].value = function(simplex[i].point);
  }
  const auto along = [&](const Point& center, const Point& worst, double step) {
    Vertex vertex;
    for (size_t k = 0; k < kConstants; ++k) vertex.point[k] = center[k] + step * (center[k] - worst[k]);
    vertex.value = function(vertex.point);
    return vertex;
  };
  for (int round = 0; round < 1500; ++round) {
    std::sort(simplex.begin(), simplex.end());
    Vertex& worst = simplex.back();
    Point center{};
    for (size_t i = 0; i < kConstants; ++i) {
      for (size_t k = 0; k < kConstants; ++k) center[k] += simplex[i].point[k] / kConstants;
    }
    const Vertex reflected = along(center, worst.point, 1);
    if (reflected < simplex.front()) {
      const Vertex expanded = along(center, worst.point, 2);
      worst = expanded < reflected ? expanded : reflected;
    } else if (reflected < simplex[kConstants - 1]) {
      worst = reflected;
    } else {
      const Vertex contracted = along(center, worst.point, reflected < worst ? 0.5 : -0.5);
      if (contracted < worst) {
        worst = contracted;
        continue;
      }
      for (size_t i = 1; i < simplex.size(); ++i) {
        simplex[i] = along(simplex.front().point, simplex[i].point, -0.5);
      }
    }
  }
  return std::min_element(simplex.begin(), simplex.end())->point;
}

}  // namespace

RecordedClass class_of(const RecordedRow& row) {
  if (row.pp > 1) return RecordedClass::kPipeline;
  if (row.samples < 10) return RecordedClass::kFew;
  return row.dataset == "prolong" ? RecordedClass::kFit : RecordedClass::kHeld;
}

DeviceProfile fit_recorded(const std::vector<RecordedRow>& rows, const ModelLookup& model_of,
                           const DeviceProfile& profile) {
  struct FitRow {
    RecordedRow row;
    RecordedWork work;
    ModelShape model;
  };
  RecordedDraws draws;
  std::vector<FitRow> fit_rows;
  for (const RecordedRow& row : rows) {
    if (class_of(row) != RecordedClass::kFit || row.ms == 0) continue;
    fit_rows.push_back({row, draws.work_of(row, profile.fit.attention_startup_keys), model_of(row.model)});
  }
  DISTCA_CHECK_INPUT(fit_rows.size() >= 10, "{} rows can be fitted: that takes 10 or more", fit_rows.size());
  DeviceProfile fitted = profile;
  const auto error = [&](const Point& point) {
    fitted.fit = constants_at(point, profile.fit.attention_startup_keys);
    double sum = 0;
    for (const FitRow& fit : fit_rows) {
      const double off = predict_recorded(fit.row, fit.work, fit.model, fitted).ms / fit.row.ms - 1;
      sum += std::hypot(off, kSmooth);
    }
    return sum;
  };
  Point start = kStart;
  for (double& value : start) value = std::log(value);
  fitted.fit = constants_at(minimize(error, start), profile.fit.attention_startup_keys);
  return fitted;
}

}  // namespace distca
