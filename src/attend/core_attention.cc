#include "attend/core_attention.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/check.h"
#include "base/digest.h"
#include "plan/exchange.h"

namespace distca {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What a step does forward and backward. Both see tensors without history.
struct Step : torch::CustomClassHolder {
  std::function<at::Tensor()> forward;
  std::function<variable_list(const at::Tensor& grad)> backward;
};

using StepPointer = c10::intrusive_ptr<Step>;

struct StepFunction : torch::autograd::Function<StepFunction> {
  template <typename... Tensors>
  static at::Tensor forward(AutogradContext* context, StepPointer step, const Tensors&...) {
    context->saved_data["step"] = c10::IValue::make_capsule(step);
    return step->forward();
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto step = c10::static_intrusive_pointer_cast<Step>(context->saved_data["step"].toCapsule());
    variable_list out = step->backward(grads[0]);
    out.insert(out.begin(), at::Tensor());  // the step itself has no gradient
    return out;
  }
};

at::Tensor new_token() {
  return at::zeros({0}, at::TensorOptions().dtype(at::kFloat));
}

template <typename... Tensors>
at::Tensor run(std::function<at::Tensor()> forward, std::function<variable_list(const at::Tensor&)> backward,
               const Tensors&... inputs) {
  auto step = c10::make_intrusive<Step>();
  step->forward = std::move(forward);
  step->backward = std::move(backward);
  return StepFunction::apply(step, inputs...);
}

// A step that takes a token and returns one.
at::Tensor run_between(const at::Tensor& token, std::function<void()> forward,
                       std::function<void()> backward) {
  return run(
      [forward] { return forward(), new_token(); },
      [backward](const at::Tensor&) -> variable_list { return backward(), variable_list{new_token()}; },
      token);
}

}  // namespace

void check_digests(Fabric& fabric, std::span<const uint64_t> digests) {
  std::vector<uint64_t> all(digests.size() * static_cast<size_t>(fabric.world_size()));
  fabric.all_gather(digests.data(), all.data(), static_cast<int64_t>(digests.size_bytes()),
                    "comparison of plans");
  for (size_t i = 0; i < all.size(); ++i) {
    const uint64_t own = digests[i % digests.size()];
    DISTCA_CHECK(all[i] == own,
                 "plans differ: rank {} has digest {}, rank {} has {}; all ranks need the same inputs",
                 fabric.rank(), hex_digest(own), i / digests.size(), hex_digest(all[i]));
  }
}

BatchTables prepare(AttentionRuntime& runtime, const Plan& plan, const std::optional<AttentionShape>& shape) {
  plan.validate();
  const uint64_t digest = plan.digest();
  check_digests(runtime.fabric, std::span(&digest, 1));
  const auto tables = std::make_shared<RankTables>(
      make_rank_tables(plan, make_exchange(plan), digest, runtime.fabric.rank(), runtime.device));
  if (shape) {
    const auto kernel = runtime.kernel->prepare(*shape, tables->tasks, tables->first_rows());
    if (kernel) tables->kernel = kernel->mapped([&](const at::Tensor& x) { return x.to(runtime.device); });
  }
  return {tables, tables};
}

at::Tensor dispatch_begin(const std::shared_ptr<AttentionCall>& call, const at::Tensor& q,
                          const at::Tensor& k, const at::Tensor& v) {
  return run([&] { return call->dispatch_begin(q.detach(), k.detach(), v.detach()), new_token(); },
             [call](const at::Tensor&) -> variable_list {
               auto [dq, dk, dv] = call->grad_dispatch_end();
               return {dq, dk, dv};
             },
             q, k, v);
}

at::Tensor dispatch_end(const std::shared_ptr<AttentionCall>& call, const at::Tensor& token) {
  return run_between(
      token, [call] { call->attend_local(), call->dispatch_end(); }, [call] { call->grad_dispatch_begin(); });
}

at::Tensor attend(const std::shared_ptr<AttentionCall>& call, const at::Tensor& token) {
  return run_between(
      token, [call] { call->attend(); }, [call] { call->grad_attend(); });
}

at::Tensor collect_begin(const std::shared_ptr<AttentionCall>& call, const at::Tensor& token) {
  return run_between(
      token, [call] { call->collect_begin(); }, [call] { call->grad_collect_end(); });
}

at::Tensor collect_end(const std::shared_ptr<AttentionCall>& call, const at::Tensor& token) {
  return run([call] { return call->collect_end(); },
             [call](const at::Tensor& dout) -> variable_list {
               call->grad_collect_begin(dout);
               return {new_token()};
             },
             token);
}

at::Tensor core_attention(AttentionRuntime& runtime, const BatchTables& tables, const AttentionShape& shape,
                          const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const std::string& name) {
  const bool differentiable =
      at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
  const auto call = std::make_shared<AttentionCall>(runtime, tables, shape, name, differentiable);
  at::Tensor token = dispatch_begin(call, q, k, v);
  token = dispatch_end(call, token);
  token = attend(call, token);
  token = collect_begin(call, token);
  return collect_end(call, token);
}

}  // namespace distca
