#include "train/stage_pass.h"

#include <ATen/TensorOperators.h>
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

StagePass::StagePass(const LlamaParameters& model, const NanoBatchRows& rows, bool recompute,
                     std::unique_ptr<PassGraphs> graphs)
    : model_(&model),
      rows_(&rows),
      recompute_(recompute),
      graphs_(std::move(graphs)),
      layers_(model.part.layer_end - model.part.layer_begin),
      pieces_(static_cast<size_t>(layers_ + 1)) {
  if (graphs_ == nullptr) return;
  graphs_->load(rows);
  rows_ = &graphs_->rows;
  model_ = &graphs_->leaves;
}

StagePass::~StagePass() = default;

at::Tensor StagePass::hold(int64_t layer, const at::Tensor& o) {
  if (graphs_ == nullptr) return o;
  copy_to(graphs_->o[layer], o);
  return graphs_->o[layer];
}

at::Tensor StagePass::compute(int64_t piece, Qkv& qkv) {
  Piece& at = pieces_[piece];
  const int64_t first = model_->part.layer_begin;
  at::Tensor x = at.x;
  if (piece > 0) {
    x = post_attention(*model_, first + piece - 1, x, at.o);
  } else if (model_->part.embedding) {
    x = embed(*model_, rows_->tokens);
  }
  if (piece == layers()) return model_->part.head ? loss_sum(*model_, x, rows_->targets) : x;
  qkv = pre_attention(*model_, first + piece, x, rows_->rope);
  return x;
}

at::Tensor StagePass::run_now(int64_t piece, Qkv& qkv) {
  Piece& at = pieces_[piece];
  const bool with_graph = !recompute_ || at::GradMode::is_enabled();
  const at::AutoGradMode mode(with_graph);
  const at::Tensor x = compute(piece, qkv);
  if (with_graph) {
    at.out = {edge_of(x)};
    if (piece < layers()) at.out = {edge_of(x), edge_of(qkv.q), edge_of(qkv.k), edge_of(qkv.v)};
  }
  return x;
}

at::Tensor StagePass::run(int64_t piece, Qkv& qkv) {
  const bool again = recompute_ && at::GradMode::is_enabled();
  pieces_[piece].has_graph = again || !recompute_;
  if (graphs_ == nullptr) return run_now(piece, qkv);
  PassGraphs::Piece& kept = graphs_->pieces[piece];
  run_captured(again ? kept.again : kept.forward, piece, [&] {
    const at::Tensor x = run_now(piece, qkv);
    if (again) return;
    kept.x = x.detach();
    if (piece < layers()) kept.qkv = {qkv.q.detach(), qkv.k.detach(), qkv.v.detach()};
  });
  qkv = kept.qkv;
  return kept.x;
}

void StagePass::run_captured(PassGraphs::Work& work, int64_t piece, const std::function<void()>& body) {
  if (graphs_->pool == nullptr || work.runs++ == 0) return body();
  if (!work.captured.captured()) {
    struct Capturing {
      TensorGroup* group;
      ~Capturing() {
        if (group != nullptr) group->capturing = nullptr;
      }
    } capturing{model_->group};
    if (model_->group != nullptr) model_->group->capturing = &work.captured;
    const int64_t first = model_->part.layer_begin;
    const std::string name =
        piece == 0 ? format("what is before layer {}'s attention", first)
        : piece == layers()
            ? format("what is after layer {}'s attention", first + piece - 1)
            : format("what is between the attention of layers {} and {}", first + piece - 1, first + piece);
    work.captured.capture(*graphs_->pool, name, body);
  }
  work.captured.run();
}

Qkv StagePass::begin(const at::Tensor& x) {
  const at::AutoGradMode mode(!recompute_);
  if (!model_->part.embedding) {
    if (graphs_ != nullptr) copy_to(graphs_->x, x);
    pieces_[0].x = leaf(graphs_ != nullptr ? graphs_->x : x, !recompute_);
  }
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
  const at::Tensor out = run(layers(), none).detach();
  // It goes to another stage, or waits for the end of the step, while the graphs run again.
  return graphs_ == nullptr ? out : out.clone();
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

void StagePass::backward_now(int64_t piece, const std::vector<at::Tensor>& grads) {
  Piece& at = pieces_[piece];
  torch::autograd::Engine::get_default_engine().execute(at.out, grads, /*keep_graph=*/false,
                                                        /*create_graph=*/false, /*accumulate_grad=*/true);
  grad_x_ = at.x.defined() ? at.x.grad() : at::Tensor();
}

void StagePass::backward_to_graphs(int64_t piece, const std::vector<at::Tensor>& grads) {
  Piece& at = pieces_[piece];
  std::vector<torch::autograd::Edge> of;
  for (const at::Tensor* input : {&at.x, &at.o})
    if (input->defined()) of.push_back(edge_of(*input));
  const size_t inputs = of.size();
  for (const at::Tensor& parameter : graphs_->parameters) of.push_back(edge_of(parameter));
  const std::vector<at::Tensor> found = torch::autograd::Engine::get_default_engine().execute(
      at.out, grads, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/false, of);
  const at::NoGradGuard no_grad;
  for (size_t i = inputs; i < found.size(); ++i)
    if (found[i].defined()) graphs_->gradients[i - inputs].add_(found[i]);
  size_t next = 0;
  if (at.x.defined()) copy_to(graphs_->grad_x, found[next++]);
  if (at.o.defined()) copy_to(graphs_->grad_o, found[next]);
  at.out.clear();
}

at::Tensor StagePass::backward(int64_t piece, const std::vector<at::Tensor>& grads) {
  recompute(piece);
  Piece& at = pieces_[piece];
  at::Tensor grad_o;
  if (graphs_ == nullptr) {
    backward_now(piece, grads);
    if (at.o.defined()) grad_o = at.o.grad();
  } else {
    run_captured(graphs_->pieces[piece].backward, piece, [&] { backward_to_graphs(piece, grads); });
    grad_x_ = at.x.defined() ? graphs_->grad_x : at::Tensor();
    if (at.o.defined()) grad_o = graphs_->grad_o;
  }
  at = Piece();
  return grad_o;
}

at::Tensor StagePass::grad_finish(const at::Tensor& grad) {
  if (graphs_ == nullptr) return backward(layers(), {grad});
  at::Tensor& place = model_->part.head ? graphs_->grad_loss : graphs_->grad_x;
  copy_to(place, grad);
  return backward(layers(), {place});
}

at::Tensor StagePass::grad_next(int64_t piece, const at::Tensor& dq, const at::Tensor& dk,
                                const at::Tensor& dv) {
  if (graphs_ == nullptr) {
    const at::Tensor grad_o = backward(piece, {grad_x_, dq, dk, dv});
    return piece > 0 ? grad_o : std::exchange(grad_x_, at::Tensor());
  }
  copy_to(graphs_->dq, dq);
  copy_to(graphs_->dk, dk);
  copy_to(graphs_->dv, dv);
  const at::Tensor grad_o = backward(piece, {grad_x_, graphs_->dq, graphs_->dk, graphs_->dv});
  if (piece > 0) return grad_o;
  return grad_x_.defined() ? grad_x_.clone() : grad_x_;
}

}  // namespace distca
