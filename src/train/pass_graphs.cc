#include "train/pass_graphs.h"

#include <ATen/ops/empty_like.h>

namespace distca {

PassGraphs::PassGraphs(at::Device device, const LlamaParameters& model)
    : pool(device.is_meta() ? nullptr : make_graph_pool(device)),
      leaves(with_own_leaves(model)),
      o(model.layers.size()),
      pieces(model.layers.size() + 1) {
  for (const NamedTensor& parameter : leaves.named()) parameters.push_back(parameter.tensor);
  for (const NamedTensor& parameter : model.named()) gradients.push_back(parameter.tensor.grad());
}

void PassGraphs::load(const NanoBatchRows& from) {
  rows.rows = from.rows;
  copy_to(rows.tokens, from.tokens);
  copy_to(rows.targets, from.targets);
  copy_to(rows.rope.cos, from.rope.cos);
  copy_to(rows.rope.sin, from.rope.sin);
}

void PassGraphs::let_go() {
  for (Piece& piece : pieces)
    if (!piece.forward.captured.captured()) piece.x = at::Tensor(), piece.qkv = {};
}

void copy_to(at::Tensor& place, const at::Tensor& value) {
  if (!value.defined()) return;
  if (!place.defined()) place = at::empty_like(value);
  place.copy_(value);
}

}  // namespace distca
