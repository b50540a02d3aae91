#include "plan/bound.h"

#include <algorithm>
#include <cmath>

namespace distca {

double lower_bound_bytes(const std::vector<int64_t>& loads, const std::vector<int64_t>& capacities,
                         const RowBytes& bytes) {
  std::vector<double> rooms, surpluses;
  double total = 0;
  for (size_t i = 0; i < loads.size(); ++i) {
    const auto over = static_cast<double>(loads[i] - capacities[i]);
    if (over > 0) {
      surpluses.push_back(over);
      total += over;
    } else {
      rooms.push_back(-over);
    }
  }
  std::sort(rooms.rbegin(), rooms.rend());
  const auto roots = [&](double surplus) {
    double sum = 0;
    for (size_t i = 0; i < rooms.size() && surplus > 0; ++i) {
      sum += std::sqrt(std::min(surplus, rooms[i]));
      surplus -= rooms[i];
    }
    return sum;
  };
  double donors = 0;
  for (const double surplus : surpluses) donors += roots(surplus);
  return 2 * std::sqrt(static_cast<double>(bytes.q + bytes.o) * static_cast<double>(bytes.kv())) *
         std::max(roots(total), donors);
}

}  // namespace distca
