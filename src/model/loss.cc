#include "model/loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "base/check.h"

namespace distca {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType accumulator(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// The loss of some rows, and where `gradients` is set what the sum's gradient is in their logits.
struct Chunk {
  at::Tensor loss;      // float64 scalar
  at::Tensor d_logits;  // (rows, vocabulary), in the type of x
};

Chunk chunk_loss(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets, bool gradients) {
  const at::Tensor ignored = targets.lt(0).unsqueeze(1);
  const at::Tensor index = targets.clamp_min(0).unsqueeze(1);
  at::Tensor logits = at::linear(x, weight).to(accumulator(x));
  const at::Tensor lse = at::logsumexp(logits, {1}, /*keepdim=*/true);
  const at::Tensor nll = (lse - logits.gather(1, index)).masked_fill(ignored, 0);
  Chunk chunk{nll.sum(at::kDouble), {}};
  if (gradients) {
    logits.sub_(lse).exp_();
    logits.scatter_add_(1, index, at::full_like(lse, -1));
    chunk.d_logits = logits.masked_fill_(ignored, 0).to(x.scalar_type());
  }
  return chunk;
}

/// Adds d_logitsᵀ · x to `sum`, which is float32 where x is bfloat16.
void add_weight_gradient(at::Tensor& sum, const at::Tensor& d_logits, const at::Tensor& x) {
  if (sum.scalar_type() == x.scalar_type()) {
    sum.addmm_(d_logits.t(), x);
  } else {
    sum.add_(at::mm(d_logits.t(), x));
  }
}

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& targets, int64_t chunk_rows, bool gradients) {
    at::Tensor total = at::zeros({}, x.options().dtype(at::kDouble));
    at::Tensor dx, d_weight;
    if (gradients) {
      dx = at::zeros_like(x);
      d_weight = at::zeros_like(weight, weight.options().dtype(accumulator(x)));
    }
    for (int64_t begin = 0; begin < x.size(0); begin += chunk_rows) {
      const int64_t rows = std::min(chunk_rows, x.size(0) - begin);
      const at::Tensor part = x.narrow(0, begin, rows);
      const Chunk chunk = chunk_loss(part, weight, targets.narrow(0, begin, rows), gradients);
      total.add_(chunk.loss);
      if (!gradients) continue;
      dx.narrow(0, begin, rows).copy_(at::mm(chunk.d_logits, weight));
      add_weight_gradient(d_weight, chunk.d_logits, part);
    }
    if (gradients) context->save_for_backward({dx, d_weight.to(weight.scalar_type())});
    return total;
  }

  static variable_list backward(AutogradContext* context, variable_list d_total) {
    const variable_list saved = context->get_saved_variables();
    const auto scaled = [&](const at::Tensor& gradient) {
      return gradient * d_total[0].to(gradient.scalar_type());
    };
    return {scaled(saved[0]), scaled(saved[1]), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                                int64_t logits_at_once) {
  DISTCA_CHECK(targets.dim() == 1 && targets.size(0) == x.size(0) && targets.scalar_type() == at::kLong,
               "{} targets of type {} for {} rows: int64, one a row, are needed", targets.numel(),
               at::toString(targets.scalar_type()), x.size(0));
  const int64_t chunk_rows = std::max<int64_t>(1, logits_at_once / std::max<int64_t>(1, weight.size(0)));
  const bool gradients = at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad());
  return LinearCrossEntropy::apply(x, weight, targets, chunk_rows, gradients);
}

}  // namespace distca
