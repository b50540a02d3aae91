// How neighbouring pipeline stages hand each other activations and their gradients, one tensor a nano-batch
// and tick. Sending never waits for the receiver, and what was sent travels while both go on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/span_log.h"
#include "comm/fabric.h"
#include "train/rank_grid.h"

namespace distca {

/// What travels: (rows, width) tensors of one type. Rows of 0 are not sent.
struct StageTraffic {
  int64_t width = 0;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

class StageLink {
 public:
  virtual ~StageLink() = default;

  /// Sends `x` to the next stage (forward) or the one before (backward) unless it is undefined. `expected`
  /// are the rows that this stage will take() in the next tick of the direction, or 0.
  virtual void give(bool forward, const at::Tensor& x, int64_t expected) = 0;
  /// The tensor that the neighbour gave, in the order in which it did.
  virtual at::Tensor take(bool forward, int64_t rows) = 0;

  int64_t bytes_sent = 0;
  double wait_s = 0;         // exposed
  SpanLog* spans = nullptr;  // where waits and messages are recorded
};

/// Over the fabric that all stages share, in step: every rank of it, servers included, calls give() at the
/// same places.
std::unique_ptr<StageLink> make_link_in_step(Fabric& attention, const RankGrid& grid,
                                             const StageTraffic& traffic);

/// From stage to stage: each calls give() and take() when its own schedule comes to them. A collective of the
/// fabric's ranks, which are dp · pp, stage after stage.
std::unique_ptr<StageLink> make_link_by_pairs(Fabric& attention, const RankGrid& grid,
                                              const StageTraffic& traffic);

}  // namespace distca
