// What a nano-batch's pass through a stage keeps from step to step where its pieces are captured in graphs
// (attention.graphs): the graphs, and the memory that they read and write. The first pass runs as ever, which
// is also what warms the device's libraries up; the second is captured piece by piece, forward and backward,
// and from then on a piece is one start. As what is saved for backward lies in the graphs' memory, passes
// that are under way at a time have graphs of their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "attend/device_graph.h"
#include "model/llama.h"

namespace distca {

/// One nano-batch as this rank sees it: as many rows as its chunk has, padding included. Nothing on a
/// dedicated server.
struct NanoBatchRows {
  int64_t rows = 0;
  at::Tensor tokens, targets;  // int64 (rows)
  Rope rope;
};

struct PassGraphs {
  /// A piece's forward, the same again before its backward, or its backward.
  struct Work {
    int64_t runs = 0;
    CapturedWork captured;
  };
  struct Piece {
    Work forward, again, backward;
    at::Tensor x;  // what forward left
    Qkv qkv;
  };

  /// For passes through that part of the model. Without memory (the meta device) nothing is captured, and all
  /// else is as with it.
  PassGraphs(at::Device device, const LlamaParameters& model);

  /// Copies a nano-batch to where the graphs read it.
  void load(const NanoBatchRows& from);
  /// Forgets what a pass left that wasn't captured.
  void let_go();

  std::unique_ptr<GraphPool> pool;
  /// Autograd adds to a parameter's gradient on the stream of whoever used the parameter first, and what is
  /// captured must touch no other stream: so these are leaves of this pass alone, without gradients.
  LlamaParameters leaves;
  std::vector<at::Tensor> parameters, gradients;  // the leaves, and what their gradients are added to
  NanoBatchRows rows;
  at::Tensor x;               // from the stage before
  std::vector<at::Tensor> o;  // by layer
  at::Tensor dq, dk, dv;      // of the piece whose backward is next
  at::Tensor grad_loss;
  at::Tensor grad_x, grad_o;  // as the last backward left them
  std::vector<Piece> pieces;
};

/// Copies `value` to `place`, which is made like it where it isn't there.
void copy_to(at::Tensor& place, const at::Tensor& value);

}  // namespace distca
