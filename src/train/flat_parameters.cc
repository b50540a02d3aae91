#include "train/flat_parameters.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include <utility>

namespace distca {

at::Tensor FlatParameters::view(const at::Tensor& buffer, const FlatEntry& entry) {
  return buffer.narrow(0, entry.begin, entry.count).view(entry.shape);
}

FlatParameters flatten(LlamaParameters model) {
  const at::NoGradGuard no_grad;
  FlatParameters flat;
  const std::vector<NamedTensor> named = model.named();
  int64_t elements = 0;
  for (const auto& [name, tensor, sharding] : named) {
    flat.entries.push_back({name, tensor.sizes().vec(), 0, tensor.numel(), sharding});
    elements += tensor.numel();
    if (tensor.dim() > 1) flat.decayed += tensor.numel();
  }
  // A rank without a part of the model holds none.
  const auto options = named.empty() ? at::TensorOptions().dtype(at::kFloat) : named[0].tensor.options();
  flat.values = at::empty({elements}, options.requires_grad(false));
  flat.gradients = at::zeros_like(flat.values);
  int64_t matrices = 0, vectors = flat.decayed;
  for (size_t i = 0; i < named.size(); ++i) {
    int64_t& end = named[i].tensor.dim() > 1 ? matrices : vectors;
    flat.entries[i].begin = end;
    end += flat.entries[i].count;
    const at::Tensor place = FlatParameters::view(flat.values, flat.entries[i]);
    place.copy_(named[i].tensor);
    named[i].tensor.set_data(place);
    named[i].tensor.mutable_grad() = FlatParameters::view(flat.gradients, flat.entries[i]);
  }
  flat.model = std::move(model);
  return flat;
}

}  // namespace distca
