#include "plan/move_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace distca {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr size_t kRootKnots = 200;
constexpr size_t kMaskKnots = 500;

/// Documents that count one by one, and cells of the grid that their loads lie on.
constexpr size_t kFirstDocuments = 16;
constexpr size_t kCells = 300;

constexpr double kRateSteps = 200;

/// From so many times its concave part on the cost is convex, though an eighth of a pair is free.
constexpr double kConvex = 1.05;

/// A document's cost on the grid, lowered by as much as lines beside a point may be above it.
std::vector<double> on_grid(const DocumentCost& cost, double cell) {
  std::vector<double> costs(kCells + 1, kInfinite);
  for (size_t k = 0; k <= kCells; ++k) {
    const double load = cell * static_cast<double>(k);
    if (load > cost.most() + cell) break;  // the first point beyond what there is ends the last line
    costs[k] = cost(load) - std::max(cost.bend(load - cell, load), cost.bend(load, load + cell));
  }
  return costs;
}

}  // namespace

DocumentCost::DocumentCost(const RowBytes& bytes, double length, double padding)
    : row_(static_cast<double>(bytes.q + bytes.o)),
      key_(static_cast<double>(bytes.kv())),
      padding_(padding),
      rho_(row_ / key_),
      length_(length + 0.5),
      concave_(rho_ * length_ * length_ / ((1 + rho_) * (1 + rho_))) {}

double DocumentCost::operator()(double load) const {
  if (load <= 0) return 0;
  const double root = load * key_ < row_ * padding_ * padding_
                          ? key_ * load / padding_
                          : 2 * std::sqrt(row_ * key_ * load) - row_ * padding_;
  if (load <= concave_) return root;
  const double square = 1 + rho_ * rho_;
  // Rows and keys are whole: an eighth.
  const double v = std::sqrt(std::max(0.0, length_ * length_ - 2 * (load - 0.125)) / square);
  return std::max(root, key_ * (length_ * (1 + rho_) - v * square) - row_ * padding_);
}

double DocumentCost::bend(double low, double high) const {
  if (high <= concave_ || low >= most()) return 0;
  const double rise = (*this)(high) - (*this)(low);
  if (low <= kConvex * concave_ || high >= most() || low * key_ < row_ * padding_ * padding_) return rise;
  const auto slope = [&](double load) {
    return key_ / std::sqrt((length_ * length_ - 2 * (load - 0.125)) / (1 + rho_ * rho_));
  };
  return std::min(rise, (high - low) / 4 * (slope(high) - slope(low)));
}

double DocumentCost::least_rate() const {
  double rate = kInfinite, before = most() / kRateSteps;
  for (double step = 1; step <= kRateSteps; ++step) {
    const double load = most() * step / kRateSteps;
    rate = std::min(rate, (*this)(before) / load);
    before = load;
  }
  return rate;
}

double documents_bound_bytes(std::vector<DocumentCost> documents, double load) {
  std::sort(documents.begin(), documents.end(),
            [](const DocumentCost& a, const DocumentCost& b) { return a.most() > b.most(); });
  const double cell = load / kCells;
  std::vector<double> least(kCells + 1, kInfinite);
  least[0] = 0;
  if (documents.size() > kFirstDocuments) {
    const double rate = documents[kFirstDocuments].least_rate();
    for (size_t k = 1; k <= kCells; ++k) least[k] = rate * cell * static_cast<double>(k);
  }
  for (size_t i = 0; i < std::min(documents.size(), kFirstDocuments); ++i) {
    const std::vector<double> one = on_grid(documents[i], cell);
    for (size_t sum = kCells; sum > 0; --sum) {
      for (size_t part = 1; part <= sum && !std::isinf(one[part]); ++part)
        least[sum] = std::min(least[sum], one[part] + least[sum - part]);
    }
  }
  return least[kCells];
}

MoveCost::MoveCost(const DocumentCost& longest, double most) : longest_(longest) {
  add_knots(most);
}

/// Up to where the mask clips, the cost is concave, and lines between its points lie below. From there on a
/// knot has the cost that is due at the one before, so that a line up to the next is nowhere above either.
void MoveCost::add_knots(double most) {
  const double concave = std::min(longest_.concave(), most);
  for (size_t k = 0; k <= kRootKnots; ++k) {
    const double share = static_cast<double>(k) / kRootKnots;
    loads_.push_back(concave * share * share);
    costs_.push_back(longest_(loads_.back()));
  }
  if (most <= longest_.concave()) return;
  const size_t before = costs_.size() - 1;
  double due = costs_.back();
  for (size_t k = 1; k <= kMaskKnots; ++k) {
    costs_.push_back(due);
    loads_.push_back(concave + (most - concave) * static_cast<double>(k) / kMaskKnots);
    due = std::max(due, of_several(loads_.back(), before));
  }
}

/// The cost is concave, then convex in what one document gives. So equal parts of some documents, all where
/// it is convex, and at most one smaller part are the cheapest: the cost between two knots is at least that
/// of the smaller part at the one below and of the others at the one above.
double MoveCost::of_several(double load, size_t knots) const {
  double least = std::numeric_limits<double>::infinity();
  for (double count = 1; count * longest_.concave() <= load; ++count) {
    for (size_t k = 0; k < knots && load - loads_[k] >= count * longest_.concave(); ++k) {
      const double others = (load - loads_[k + 1]) / count;
      if (others <= longest_.most()) least = std::min(least, costs_[k] + count * longest_(others));
    }
  }
  return least;
}

double MoveCost::operator()(double load) const {
  const auto after = std::upper_bound(loads_.begin(), loads_.end(), load);
  if (after == loads_.begin()) return 0;
  if (after == loads_.end()) return costs_.back();
  const auto at = static_cast<size_t>(after - loads_.begin());
  const double share = (load - loads_[at - 1]) / (loads_[at] - loads_[at - 1]);
  return costs_[at - 1] + share * (costs_[at] - costs_[at - 1]);
}

double MoveCost::slope(double low, double high) const {
  const double start = (*this)(low);
  double least = ((*this)(high)-start) / (high - low);
  for (auto at = std::upper_bound(loads_.begin(), loads_.end(), low); at != loads_.end() && *at < high; ++at)
    least = std::min(least, (costs_[static_cast<size_t>(at - loads_.begin())] - start) / (*at - low));
  return std::max(0.0, least);
}

}  // namespace distca
