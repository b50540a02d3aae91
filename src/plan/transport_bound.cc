#include "plan/transport_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace distca {
namespace {

/// Share of a sum of loads that is taken for nothing, and by how much bounds are lowered for it.
constexpr double kNothing = 1e-9;

/// An open part of the search is closed where it can't be this much cheaper than flows that are known.
constexpr double kCloseEnough = 1e-3;

/// A range is not split closer to its ends than this share of it.
constexpr double kLeastSplit = 0.1;

/// One flow of a transport problem: a line over a range of loads.
struct Arc {
  double low = 0, high = 0, slope = 0;
  double load = 0;  // in the cheapest flows
};

/// Flows by donor, then recipient, in ranges, and what they cost at least.
struct Part {
  std::vector<Arc> arcs;
  double bound = 0;
};

/// The cheapest flows under lines: donor after donor sends along the cheapest path that takes flows back
/// where that pays.
class Transport {
 public:
  Transport(const std::vector<double>& surplus, const std::vector<double>& rooms, std::vector<Arc>& arcs)
      : surplus_(surplus), rooms_(rooms), arcs_(arcs), donors_(surplus.size()) {
    for (size_t i = 0; i < donors_; ++i) total_ += surplus[i];
    for (size_t at = 0; at < arcs.size(); ++at) {
      Arc& arc = arcs[at];
      arc.load = arc.low;
      surplus_[at / rooms.size()] -= arc.low;
      rooms_[at % rooms.size()] -= arc.low;
    }
  }

  /// False if some surplus finds no room.
  bool solve() {
    for (size_t step = 0; step < 64 * (arcs_.size() + 1); ++step) {
      if (*std::max_element(surplus_.begin(), surplus_.end()) <= kNothing * total_) return true;
      if (!send()) return false;
    }
    return false;
  }

 private:
  Arc& arc(size_t donor, size_t recipient) { return arcs_[donor * rooms_.size() + recipient]; }
  bool is_something(double load) const { return load > kNothing * total_; }

  /// Prices of reaching every recipient from donors that have surplus left, and the ways there.
  void find_paths() {
    const double infinite = std::numeric_limits<double>::infinity();
    at_donor_.assign(donors_, infinite);
    at_recipient_.assign(rooms_.size(), infinite);
    donor_from_.assign(donors_, rooms_.size());
    recipient_from_.assign(rooms_.size(), donors_);
    for (size_t i = 0; i < donors_; ++i) at_donor_[i] = is_something(surplus_[i]) ? 0 : infinite;
    bool changed = true;
    for (size_t round = 0; changed && round <= donors_ + rooms_.size(); ++round) {
      changed = false;
      for (size_t i = 0; i < donors_; ++i) {
        for (size_t j = 0; j < rooms_.size(); ++j) changed |= relax(i, j);
      }
    }
  }

  bool relax(size_t i, size_t j) {
    const Arc& flow = arc(i, j);
    const double little = 1e-12 * flow.slope;
    bool changed = false;
    if (is_something(flow.high - flow.load) && at_donor_[i] + flow.slope < at_recipient_[j] - little) {
      at_recipient_[j] = at_donor_[i] + flow.slope;
      recipient_from_[j] = i;
      changed = true;
    }
    if (is_something(flow.load - flow.low) && at_recipient_[j] - flow.slope < at_donor_[i] - little) {
      at_donor_[i] = at_recipient_[j] - flow.slope;
      donor_from_[i] = j;
      changed = true;
    }
    return changed;
  }

  bool send() {
    find_paths();
    size_t last = rooms_.size();
    for (size_t j = 0; j < rooms_.size(); ++j) {
      if (!is_something(rooms_[j]) || std::isinf(at_recipient_[j])) continue;
      if (last == rooms_.size() || at_recipient_[j] < at_recipient_[last]) last = j;
    }
    if (last == rooms_.size()) return false;
    double load = rooms_[last];
    const size_t first = walk(last, [&](Arc& flow, bool back) {
      load = std::min(load, back ? flow.load - flow.low : flow.high - flow.load);
    });
    load = std::min(load, surplus_[first]);
    walk(last, [&](Arc& flow, bool back) { flow.load += back ? -load : load; });
    rooms_[last] -= load;
    surplus_[first] -= load;
    return true;
  }

  /// Visits the flows on the way to a recipient and returns the donor where it begins.
  template <typename Visit>
  size_t walk(size_t recipient, Visit visit) {
    for (size_t hop = 0;; ++hop) {
      const size_t donor = recipient_from_[recipient];
      visit(arc(donor, recipient), false);
      if (donor_from_[donor] == rooms_.size() || hop > donors_) return donor;
      recipient = donor_from_[donor];
      visit(arc(donor, recipient), true);
    }
  }

  std::vector<double> surplus_, rooms_;
  std::vector<Arc>& arcs_;
  size_t donors_;
  double total_ = 0;
  std::vector<double> at_donor_, at_recipient_;
  std::vector<size_t> donor_from_, recipient_from_;
};

class BranchAndBound {
 public:
  BranchAndBound(const std::vector<double>& surplus, const std::vector<double>& rooms, const MoveCost& cost)
      : surplus_(surplus), rooms_(rooms), cost_(cost) {}

  double run(int work) {
    Part all;
    for (const double over : surplus_) {
      for (const double room : rooms_) all.arcs.push_back({0, std::min(over, room), 0, 0});
    }
    for (Arc& arc : all.arcs) set_slope(arc);
    if (!add(std::move(all))) return 0;
    const int parts = 1 + work / static_cast<int>(surplus_.size() * rooms_.size());
    for (int i = 0; i < parts && !open_.empty(); ++i) {
      std::pop_heap(open_.begin(), open_.end(), dearer);
      const Part part = std::move(open_.back());
      open_.pop_back();
      if (!split(part)) return std::min(part.bound, known_);
    }
    for (const Part& part : open_) known_ = std::min(known_, part.bound);
    return known_ * (1 - kCloseEnough);
  }

 private:
  static bool dearer(const Part& a, const Part& b) { return a.bound > b.bound; }

  void set_slope(Arc& arc) const { arc.slope = arc.high > arc.low ? cost_.slope(arc.low, arc.high) : 0; }

  /// Opens a part unless it is empty or can't be cheaper than what is known. False if it is empty.
  bool add(Part&& part) {
    if (!Transport(surplus_, rooms_, part.arcs).solve()) return false;
    double cost = 0;
    part.bound = 0;
    for (const Arc& arc : part.arcs) {
      cost += cost_(arc.load);
      part.bound += cost_(arc.low) + (arc.load - arc.low) * arc.slope;
    }
    part.bound *= 1 - kNothing;
    known_ = std::min(known_, cost);
    if (part.bound >= known_ * (1 - kCloseEnough)) return true;
    open_.push_back(std::move(part));
    std::push_heap(open_.begin(), open_.end(), dearer);
    return true;
  }

  /// Splits the range of the flow whose line is furthest below its cost. False if there is none.
  bool split(const Part& part) {
    size_t worst = part.arcs.size();
    double most = 0;
    for (size_t i = 0; i < part.arcs.size(); ++i) {
      const Arc& arc = part.arcs[i];
      const double gap = cost_(arc.load) - cost_(arc.low) - (arc.load - arc.low) * arc.slope;
      if (gap <= most) continue;
      most = gap;
      worst = i;
    }
    if (worst == part.arcs.size()) return false;
    const Arc& arc = part.arcs[worst];
    const double least = kLeastSplit * (arc.high - arc.low);
    const double at = std::clamp(arc.load, arc.low + least, arc.high - least);
    for (const bool upper : {false, true}) {
      Part half = part;
      (upper ? half.arcs[worst].low : half.arcs[worst].high) = at;
      if (tighten(half, worst)) add(std::move(half));
    }
    return true;
  }

  /// Ranges of flows of the same donor or recipient, now that one has a smaller range. False if one is empty.
  bool tighten(Part& part, size_t changed) const {
    set_slope(part.arcs[changed]);
    const size_t width = rooms_.size();
    for (size_t at = 0; at < part.arcs.size(); ++at) {
      const size_t i = at / width, j = at % width;
      if (i != changed / width && j != changed % width) continue;
      double given_low = 0, given_high = 0, taken = 0;
      for (size_t k = 0; k < width; ++k) {
        given_low += k == j ? 0 : part.arcs[i * width + k].low;
        given_high += k == j ? 0 : part.arcs[i * width + k].high;
      }
      for (size_t k = 0; k < surplus_.size(); ++k) taken += k == i ? 0 : part.arcs[k * width + j].low;
      Arc& arc = part.arcs[at];
      const double high = std::min({arc.high, surplus_[i] - given_low, rooms_[j] - taken});
      const double low = std::max(arc.low, surplus_[i] - given_high);
      if (low > high + kNothing * surplus_[i]) return false;
      if (low == arc.low && high == arc.high) continue;
      arc.low = std::min(low, high);
      arc.high = high;
      set_slope(arc);
    }
    return true;
  }

  const std::vector<double>&surplus_, &rooms_;
  const MoveCost& cost_;
  std::vector<Part> open_;  // a heap, the least bound first
  double known_ = std::numeric_limits<double>::infinity();
};

}  // namespace

double transport_bound_bytes(const std::vector<double>& surplus, const std::vector<double>& rooms,
                             const MoveCost& cost, int work) {
  if (surplus.empty() || rooms.empty()) return 0;
  return BranchAndBound(surplus, rooms, cost).run(work);
}

}  // namespace distca
