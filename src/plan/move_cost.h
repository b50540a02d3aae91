// What load costs at least that one server computes for another: out of one document, out of several of
// those that a rank has, and out of any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "plan/row_bytes.h"

namespace distca {

/// Bytes that a load out of one document costs at least. `length` is its tokens, padding included, and in its
/// last tile are 128 - `padding` rows. With D the length, that is the root of plan/bound.h up to a load of
/// rho · D² / (1 + rho)², so far concave; and then, convex, what the mask makes of it.
class DocumentCost {
 public:
  DocumentCost(const RowBytes& bytes, double length, double padding);

  double operator()(double load) const;

  /// The line between two loads is nowhere above the cost by more.
  double bend(double low, double high) const;

  /// No load has less for each unit of it.
  double least_rate() const;

  double concave() const { return concave_; }  // load up to which the mask clips nothing
  double most() const { return length_ * length_ / 2; }

 private:
  double row_, key_, padding_, rho_, length_, concave_;
};

/// What `load` out of several documents costs at least. Their costs are laid on a grid of loads as broken
/// lines that are nowhere above them; then the cheapest sums lie on the grid too. Of documents after the 16
/// longest any load has the least rate.
double documents_bound_bytes(std::vector<DocumentCost> documents, double load);

/// Bytes that a load up to `most` costs at least out of documents that cost no less than `longest`, be there
/// any number of them: it never falls, and that of two loads is no less than that of their sum.
class MoveCost {
 public:
  MoveCost(const DocumentCost& longest, double most);

  double operator()(double load) const;

  /// The steepest line from `low` that is nowhere above the cost up to `high` > `low`.
  double slope(double low, double high) const;

 private:
  void add_knots(double most);
  double of_several(double load, size_t knots) const;

  DocumentCost longest_;
  std::vector<double> loads_, costs_;  // the cost is at least the broken line through these
};

}  // namespace distca
