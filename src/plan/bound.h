// The least that any plan on a fixed layout must ship. A task of F pairs needs rows and columns with
// |rows| · |columns| >= F, so it costs at least 2 · sqrt((Q + O) · KV · F) bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/row_bytes.h"

namespace distca {

/// `loads` are padded pairs of what each server is home to, `capacities` what it may compute. Receivers: the
/// total surplus fills the largest capacities first (the root is concave). Donors: each one's own surplus
/// does so, with all capacities free again. The larger of the two sums of bytes.
double lower_bound_bytes(const std::vector<int64_t>& loads, const std::vector<int64_t>& capacities,
                         const RowBytes& bytes);

}  // namespace distca
