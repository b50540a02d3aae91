// The middle of measured values.
#pragma once

#include <algorithm>
#include <vector>

namespace distca {

/// Of an even number, the upper of the two in the middle. There is at least one.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace distca
