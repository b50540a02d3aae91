// Linear maps whose weight may be split over a tensor-parallel group (Megatron-LM, arXiv 1909.08053, with
// sequence parallelism as in arXiv 2205.05198), as autograd functions. Weights may be of a wider type than
// the activations: they are cast where they are used, nothing of the narrow copy is kept until backward, and
// their gradients come out in their own type.
//
// Without a group these are plain linear maps. `name` tells what waits in an error.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "model/tensor_group.h"

namespace distca {

/// x · weightᵀ for each of `weights` (out, in): `x` is this rank's rows (L, in), the outputs are all rows
/// (tp · L, out). The gather of rows travels beside the products. Backward gathers `x` again instead of
/// keeping all rows, and computes the weights' gradients while the input's travels.
std::vector<at::Tensor> gathered_linear(TensorGroup* group, const at::Tensor& x,
                                        const std::vector<at::Tensor>& weights, const std::string& name);

/// Σ over the group's ranks of x · weightᵀ: `x` is all rows (tp · L, in) of this rank's columns, `weight`
/// (out, in), the output this rank's rows (L, out). Sums are made in rank order.
at::Tensor linear_scattered(TensorGroup* group, const at::Tensor& x, const at::Tensor& weight,
                            const std::string& name);

/// Σ over the group's ranks of x (tp · L, width), this rank's rows of it (L, width). Its gradient is
/// gathered.
at::Tensor scatter_rows(TensorGroup* group, const at::Tensor& x, const std::string& name);

}  // namespace distca
