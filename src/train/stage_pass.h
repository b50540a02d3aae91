// A nano-batch's way through the layers that one pipeline stage holds, as pieces of context-independent work
// between core attentions. Each piece is an autograd graph of its own, so that backward too goes piece by
// piece, at the schedule's command, with exchanges between:
//
//   piece 0      embedding (first stage) or the stage before it → pre(0)          → Q, K, V
//   piece i      O of layer i − 1 → post(i − 1) → pre(i)                          → Q, K, V
//   piece L      O of the last layer → post(L − 1) → head and loss (last stage) or the next stage
//
// Layers are counted from the stage's first. With graphs (train/pass_graphs.h) a piece is captured once and
// started as one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "train/pass_graphs.h"

namespace distca {

class StagePass {
 public:
  /// With `recompute` only the inputs of a piece are kept: its graph is made again before its backward.
  /// Neither the model nor the rows may go before the pass does. `graphs` is null where nothing is captured;
  /// else they are of as many rows, and of no other pass meanwhile.
  StagePass(const LlamaParameters& model, const NanoBatchRows& rows, bool recompute,
            std::unique_ptr<PassGraphs> graphs = nullptr);

  ~StagePass();

  int64_t layers() const { return layers_; }
  /// Once the pass is over, for another of as many rows; null where there were none.
  std::unique_ptr<PassGraphs> release_graphs() { return std::move(graphs_); }

  /// O of `layer`, to be given to next() or finish(): with graphs, where they read it.
  at::Tensor hold(int64_t layer, const at::Tensor& o);

  /// Piece 0. `x` is what the stage before sent; undefined on the first stage.
  Qkv begin(const at::Tensor& x);
  /// Piece `layer`, from O of the layer before it.
  Qkv next(int64_t layer, const at::Tensor& o);
  /// The last piece: what goes to the next stage or, on the last, the sum of the chunk's cross-entropies as a
  /// float64 scalar.
  at::Tensor finish(const at::Tensor& o);

  /// With recompute: makes piece `piece`'s graph again, ahead of its backward.
  void recompute(int64_t piece);

  /// Backward of the last piece, given the gradient of what finish() returned: dO of the last layer.
  at::Tensor grad_finish(const at::Tensor& grad);
  /// Backward of piece `piece` < layers(), given the gradients of its Q, K, V. Returns dO of the layer before
  /// it; of piece 0, what the stage before it gets (undefined on the first stage).
  at::Tensor grad_next(int64_t piece, const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv);

 private:
  struct Piece;

  at::Tensor run(int64_t piece, Qkv& qkv);
  at::Tensor run_now(int64_t piece, Qkv& qkv);
  at::Tensor compute(int64_t piece, Qkv& qkv);
  at::Tensor backward(int64_t piece, const std::vector<at::Tensor>& grads);
  void backward_now(int64_t piece, const std::vector<at::Tensor>& grads);
  void backward_to_graphs(int64_t piece, const std::vector<at::Tensor>& grads);
  /// Does `body`, which is part of that piece, as `work` does it by now.
  void run_captured(PassGraphs::Work& work, int64_t piece, const std::function<void()>& body);

  const LlamaParameters* model_;
  const NanoBatchRows* rows_;
  bool recompute_;
  std::unique_ptr<PassGraphs> graphs_;
  int64_t layers_;
  std::vector<Piece> pieces_;
  at::Tensor grad_x_;  // of the residual stream after the piece whose backward comes next
};

}  // namespace distca
