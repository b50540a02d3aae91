// Sums gradients over data-parallel ranks while backward goes on. As soon as a piece of the model has got its
// gradient from every nano-batch, its sum starts: slices go to the ranks that sum them, in rank order, and
// the sums come back while the layers below are still at work. The bits are those of one sum at the end.
//
// All ranks of the fabric call the same functions in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <vector>

#include "base/span_log.h"
#include "comm/fabric.h"
#include "train/flat_parameters.h"

namespace distca {

/// The piece of a stage's pass (train/stage_pass.h) whose backward is the last to add to a parameter.
int64_t last_piece_of(const LlamaPart& part, const std::string& parameter);

class GradientSum {
 public:
  /// Neither may go before this does. Until the first backward is over nothing is allocated.
  GradientSum(Fabric& fabric, FlatParameters& parameters);
  ~GradientSum();

  /// Gradients of piece `piece` are complete on this rank: starts their sum.
  void start(int64_t piece);
  /// Moves sums on that were started before the last call of this: their slices are summed, and the sums
  /// sent. Waits for slices that haven't come, so call it when other work was done meanwhile.
  void advance();
  /// Waits until all are there. Throws Error when a piece wasn't started.
  void finish();

  double wait_s = 0;         // exposed, on the fabric's clock
  SpanLog* spans = nullptr;  // where waits are recorded

 private:
  struct Piece;
  struct UnderWay;

  void send_sums(UnderWay& sum);
  void wait(UnderWay& sum);

  Fabric& fabric_;
  FlatParameters& parameters_;
  std::vector<Piece> pieces_;
  std::deque<UnderWay> summing_, returning_;
  int64_t started_ = 0;
};

}  // namespace distca
