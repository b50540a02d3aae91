#include "train/stage_pass.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "base/check.h"

namespace distca {
namespace {

at::Tensor leaf(const at::Tensor& value, bool with_graph) {
  return value.detach().requires_grad_(with_graph);
}

torch::autograd::Edge edge_of(const at::Tensor& tensor) {
  return torch::autograd::impl::gradient_edge(tensor);
}

}  // namespace

struct StagePass::Piece {
  at::Tensor x, o;                         // leaves: the residual stream, and attention's output
  std::vector<torch::autograd::Edge> out;  // x, q, k, v; or the last piece's result alone
  bool has_graph = false;
};

StagePass::StagePass(const LlamaParameters& model, const NanoBatchRows& rows, bool recompute)
    : model_(model),
      rows_(rows),
      recompute_(recompute),
      layers_(model.part.layer_end - model.part.layer_begin),
      pieces_(static_cast<size_t>(layers_ + 1)) {}

StagePass::~StagePass() = default;

at::Tensor StagePass::compute(int64_t piece, Qkv& qkv) {
  Piece& at = pieces_[piece];
  const int64_t first = model_.part.layer_begin;
  at::Tensor x = at.x;
  if (piece > 0) {
    x = post_attention(model_, first + piece - 1, x, at.o);
  } else if (model_.part.embedding) {
    x = embed(model_, rows_.tokens);
  }
  if (piece == layers()) return model_.part.head ? loss_sum(model_, x, rows_.targets) : x;
  qkv = pre_attention(model_, first + piece, x, rows_.rope);
  return x;
}

at::Tensor StagePass::run(int64_t piece, Qkv& qkv) {
  Piece& at = pieces_[piece];
  const bool with_graph = !recompute_ || at::GradMode::is_enabled();
  const at::AutoGradMode mode(with_graph);
  const at::Tensor x = compute(piece, qkv);
  if (with_graph) {
    at.out = {edge_of(x)};
    if (piece < layers()) at.out = {edge_of(x), edge_of(qkv.q), edge_of(qkv.k), edge_of(qkv.v)};
    at.has_graph = true;
  }
  return x;
}

Qkv StagePass::begin(const at::Tensor& x) {
  const at::AutoGradMode mode(!recompute_);
  if (!model_.part.embedding) pieces_[0].x = leaf(x, !recompute_);
  Qkv qkv;
  const at::Tensor out = run(0, qkv);
  pieces_[1].x = leaf(out, !recompute_);
  return qkv;
}

Qkv StagePass::next(int64_t layer, const at::Tensor& o) {
  const at::AutoGradMode mode(!recompute_);
  pieces_[layer].o = leaf(o, !recompute_);
  Qkv qkv;
  const at::Tensor out = run(layer, qkv);
  pieces_[layer + 1].x = leaf(out, !recompute_);
  return qkv;
}

at::Tensor StagePass::finish(const at::Tensor& o) {
  const at::AutoGradMode mode(!recompute_);
  pieces_[layers()].o = leaf(o, !recompute_);
  Qkv none;
  return run(layers(), none).detach();
}

void StagePass::recompute(int64_t piece) {
  Piece& at = pieces_[piece];
  if (at.has_graph) return;
  const at::AutoGradMode mode(true);
  for (at::Tensor* input : {&at.x, &at.o})
    if (input->defined()) *input = leaf(*input, true);
  Qkv qkv;
  run(piece, qkv);
}

at::Tensor StagePass::backward(int64_t piece, std::vector<at::Tensor> grads) {
  recompute(piece);
  Piece& at = pieces_[piece];
  torch::autograd::Engine::get_default_engine().execute(at.out, grads, /*keep_graph=*/false,
                                                        /*create_graph=*/false, /*accumulate_grad=*/true);
  grad_x_ = at.x.defined() ? at.x.grad() : at::Tensor();
  at::Tensor grad_o = at.o.defined() ? at.o.grad() : at::Tensor();
  at = Piece();
  return grad_o;
}

at::Tensor StagePass::grad_finish(const at::Tensor& grad) {
  return backward(layers(), {grad});
}

at::Tensor StagePass::grad_next(int64_t piece, const at::Tensor& dq, const at::Tensor& dk,
                                const at::Tensor& dv) {
  at::Tensor grad_o = backward(piece, {grad_x_, dq, dk, dv});
  return piece > 0 ? grad_o : std::exchange(grad_x_, at::Tensor());
}

}  // namespace distca
