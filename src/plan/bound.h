// About the least that a plan on a fixed layout must ship. A task of F pairs needs rows and columns with
// |rows| · |columns| >= F, so it costs at least 2 · sqrt((Q + O) · KV · F) bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/row_bytes.h"

namespace distca {

/// A bound of every plan that keeps the capacities where pieces hold whole tiles and no key is at its
/// recipient already. Padded pairs count rows that don't exist: a piece with a last tile of few rows moves
/// load for fewer bytes, and so does one to another home of its document. On small batches a plan can then
/// end below this.
///
/// `loads` are padded pairs of what each server is home to, `capacities` what it may compute. Receivers: the
/// total surplus fills the largest capacities first (the root is concave). Donors: each one's own surplus
/// does so, with all capacities free again. The larger of the two sums of bytes.
double lower_bound_bytes(const std::vector<int64_t>& loads, const std::vector<int64_t>& capacities,
                         const RowBytes& bytes);

}  // namespace distca
