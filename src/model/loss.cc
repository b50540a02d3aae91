#include "model/loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "base/check.h"

namespace distca {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType accumulator(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// What softmax needs of some rows' logits; each (rows, 1).
struct Softmax {
  at::Tensor lse, target;  // over the whole vocabulary; the target's logit
};

/// `index` (rows, 1) is the target's column, `here` (rows, 1) where it is among the columns of `logits`.
Softmax softmax_of(TensorGroup* group, const at::Tensor& logits, const at::Tensor& index,
                   const at::Tensor& here) {
  const at::Tensor lse = at::logsumexp(logits, {1}, /*keepdim=*/true);
  const at::Tensor target = logits.gather(1, index);
  if (size_of(group) == 1) return {lse, target};
  const at::Tensor all =
      gather_now(*group, at::cat({lse, target.masked_fill(here.logical_not(), 0)}, 1), "softmax of the loss");
  return {at::logsumexp(all.narrow(2, 0, 1), {0}), all.narrow(2, 1, 1).sum(0)};
}

/// The loss of some rows, and where `gradients` is set what the sum's gradient is in their logits.
struct Chunk {
  at::Tensor loss;      // float64 scalar
  at::Tensor d_logits;  // (rows, columns of `weight`), in the type of x
};

Chunk chunk_loss(TensorGroup* group, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                 bool gradients) {
  const at::Tensor ignored = targets.lt(0).unsqueeze(1);
  const int64_t columns = weight.size(0), first = group == nullptr ? 0 : group->rank() * columns;
  const at::Tensor column = (targets.clamp_min(0) - first).unsqueeze(1);
  const at::Tensor here = column.ge(0).logical_and(column.lt(columns));
  const at::Tensor index = group == nullptr ? column : column.clamp(0, columns - 1);
  at::Tensor logits = at::linear(x, weight).to(accumulator(x));
  const Softmax softmax = softmax_of(group, logits, index, here);
  const at::Tensor nll = (softmax.lse - softmax.target).masked_fill(ignored, 0);
  Chunk chunk{nll.sum(at::kDouble), {}};
  if (gradients) {
    logits.sub_(softmax.lse).exp_();
    logits.scatter_add_(1, index, here.to(logits.scalar_type()).neg());
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

struct GroupPointer : torch::CustomClassHolder {
  explicit GroupPointer(TensorGroup* group) : group(group) {}

  TensorGroup* group;
};

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const c10::intrusive_ptr<GroupPointer>& pointer,
                            const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                            int64_t chunk_rows, bool gradients) {
    TensorGroup* const group = pointer->group;
    const int64_t ranks = size_of(group), rows = x.size(0);
    const int64_t own_rows = std::max<int64_t>(1, chunk_rows / ranks);
    const RowRuns runs{rows, std::max((rows + own_rows - 1) / own_rows, runs_of(group, rows).runs)};
    RowGather gather(group, x, runs, "rows for the loss");
    const at::Tensor cast = weight.to(x.scalar_type());
    at::Tensor total = at::zeros({}, x.options().dtype(at::kDouble)), d_weight;
    std::optional<RowScatter> dx;
    if (gradients) {
      dx.emplace(group, gather.all().sizes(), x.options(), runs, "gradient of the loss");
      d_weight = at::zeros_like(weight, weight.options().dtype(accumulator(x)));
    }
    for (int64_t run = 0; run < runs.runs; ++run) {
      gather.wait(run);
      // The same run of every rank's rows.
      const auto rows_of = [&](const at::Tensor& all) {
        return all.unflatten(0, {ranks, rows}).narrow(1, runs.begin(run), runs.count(run));
      };
      const at::Tensor part = rows_of(gather.all()).flatten(0, 1);
      const Chunk chunk = chunk_loss(group, part, cast, rows_of(targets).flatten(), gradients);
      total.add_(chunk.loss);
      if (!gradients) continue;
      rows_of(dx->shares()).copy_(at::mm(chunk.d_logits, cast).unflatten(0, {ranks, runs.count(run)}));
      dx->send(run);
      add_weight_gradient(d_weight, chunk.d_logits, part);
    }
    if (gradients) context->save_for_backward({dx->finish(), d_weight.to(weight.scalar_type())});
    return total;
  }

  static variable_list backward(AutogradContext* context, variable_list d_total) {
    const variable_list saved = context->get_saved_variables();
    const auto scaled = [&](const at::Tensor& gradient) {
      return gradient * d_total[0].to(gradient.scalar_type());
    };
    return {at::Tensor(), scaled(saved[0]), scaled(saved[1]), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(TensorGroup* group, const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& targets, int64_t logits_at_once) {
  const int64_t rows = x.size(0) * size_of(group);
  DISTCA_CHECK(targets.dim() == 1 && targets.size(0) == rows && targets.scalar_type() == at::kLong,
               "{} targets of type {} for {} rows: int64, one a row, are needed", targets.numel(),
               at::toString(targets.scalar_type()), rows);
  const int64_t chunk_rows = std::max<int64_t>(1, logits_at_once / std::max<int64_t>(1, weight.size(0)));
  const bool gradients = at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad());
  return LinearCrossEntropy::apply(c10::make_intrusive<GroupPointer>(group), x, weight, targets, chunk_rows,
                                   gradients);
}

}  // namespace distca
