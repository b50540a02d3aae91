#include "plan/picture.h"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "base/check.h"

namespace distca {
namespace {

constexpr double kMargin = 50, kBars = 260, kArcs = 260;

class Svg {
 public:
  Svg(double width, double height) {
    text_ = format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" "
        "font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        width, height);
  }

  void bar(double x, double y, double width, double height, const char* colour, const std::string& title) {
    text_ +=
        format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"><title>{}</title></rect>\n", x,
               y, width, std::max(0.0, height), colour, title);
  }

  void line(double x1, double y1, double x2, double y2, const char* style) {
    text_ += format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" {}/>\n", x1, y1, x2, y2, style);
  }

  /// A half ellipse below the line y = `y`.
  void arc(double from, double to, double y, double depth, double width, const std::string& title) {
    text_ += format(
        "<path d=\"M {} {} C {} {} {} {} {} {}\" fill=\"none\" stroke=\"{}\" stroke-opacity=\"0.45\" "
        "stroke-width=\"{}\"><title>{}</title></path>\n",
        from, y, from, y + depth, to, y + depth, to, y, from < to ? "#d95f02" : "#1b9e77", width, title);
  }

  void label(double x, double y, const std::string& words, const char* anchor = "start") {
    text_ += format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, words);
  }

  std::string finish() { return text_ + "</svg>\n"; }

 private:
  std::string text_;
};

std::string rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

}  // namespace

std::string plan_picture(const PlanReport& report, const Exchange& exchange, const RowBytes& bytes) {
  const auto count = static_cast<double>(report.servers);
  const double step = std::clamp(1100 / count, 3.0, 60.0), width = 2 * kMargin + step * count;
  Svg svg(std::max(600.0, width), 2 * kMargin + kBars + kArcs);
  const double mean = std::max(1.0, std::accumulate(report.loads.begin(), report.loads.end(), 0.0) / count);
  double most = 1;
  for (const std::vector<int64_t>* loads : {&report.home_loads, &report.loads}) {
    for (const int64_t load : *loads) most = std::max(most, static_cast<double>(load) / mean);
  }
  const double base = kMargin + kBars;
  svg.label(kMargin, 20,
            format("{} servers, policy {}, layout {}: max/mean {}, {} GB moved. Grey: attention at home; "
                   "blue: as planned; "
                   "arcs: who sends to whom",
                   report.servers, report.policy, report.layout, rounded(report.padded_max_over_mean),
                   rounded(static_cast<double>(report.traffic.total()) / 1e9)));
  for (size_t r = 0; r < report.loads.size(); ++r) {
    const double x = kMargin + static_cast<double>(r) * step;
    const double before = static_cast<double>(report.home_loads[r]) / mean,
                 after = static_cast<double>(report.loads[r]) / mean;
    const bool over = after > 1 + report.tolerance && !report.finish_max_over_best;
    svg.bar(x, base - kBars * before / most, step * 0.45, kBars * before / most, "#bbbbbb",
            format("server {} at home: {} of the mean", r, rounded(before)));
    svg.bar(x + step * 0.45, base - kBars * after / most, step * 0.45, kBars * after / most,
            over ? "#d7301f" : "#2b6cb0", format("server {} as planned: {} of the mean", r, rounded(after)));
    if (step >= 12) svg.label(x + step * 0.45, base + 14, text(r), "middle");
  }
  svg.line(kMargin, base - kBars / most, width - kMargin, base - kBars / most,
           "stroke=\"black\" stroke-dasharray=\"4\"");
  svg.label(kMargin - 6, base - kBars / most + 4, "mean", "end");
  double most_bytes = 1;
  const auto bytes_of = [&](const Route& route) {
    return static_cast<double>(route.q_rows * (bytes.q + bytes.o) + route.kv_rows * bytes.kv());
  };
  for (const Route& route : exchange.routes) {
    if (route.home != route.server) most_bytes = std::max(most_bytes, bytes_of(route));
  }
  for (const Route& route : exchange.routes) {
    if (route.home == route.server) continue;
    const double from = kMargin + (route.home + 0.45) * step, to = kMargin + (route.server + 0.45) * step;
    const double depth = 30 + (kArcs - 40) * std::abs(route.home - route.server) / count;
    svg.arc(from, to, base + 20, depth, std::max(0.3, 6 * bytes_of(route) / most_bytes),
            format("{} sends to {}: {} MB", route.home, route.server, rounded(bytes_of(route) / 1e6)));
  }
  return svg.finish();
}

}  // namespace distca
