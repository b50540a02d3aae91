#include "attend/attention_call.h"

#include <ATen/Parallel.h>
#include <ATen/ops/stack.h>

#include <limits>

#include "attend/merge.h"
#include "attend/rows.h"
#include "attend/work_timer.h"
#include "base/check.h"

namespace distca {

AttentionRuntime::AttentionRuntime(Fabric& fabric, const RuntimeOptions& options, at::Device device)
    : fabric(fabric),
      options(options),
      device(device),
      kernel(make_attention_kernel(options.kernel, device.type(), options.threads)) {
  // Ranks share the cores of a machine: without this each would start a team of threads for every tensor
  // operation.
  at::set_num_threads(options.threads);
}

std::unique_ptr<Shipment> AttentionRuntime::shipment(const RankTables& tables) {
  return std::make_unique<Shipment>(tables, pool, stats, spans, signal.get());
}

AttentionCall::AttentionCall(AttentionRuntime& runtime, BatchTables tables, const AttentionShape& shape,
                             std::string name, bool differentiable)
    : runtime_(runtime),
      tables_(std::move(tables)),
      shape_(shape),
      name_(std::move(name)),
      differentiable_(differentiable) {
  shape_.check();
  DISTCA_CHECK(tables_.forward->ranks == runtime.fabric.world_size(), "a plan for {} ranks on a fabric of {}",
               tables_.forward->ranks, runtime.fabric.world_size());
  DISTCA_CHECK(runtime.options.memory == AttentionMemory::kResend || tables_.backward == nullptr ||
                   tables_.forward == tables_.backward,
               "memory 'keep' runs backward where forward ran: it takes one plan for both, use 'resend'");
}

AttentionCall::AttentionCall(AttentionRuntime& runtime, BatchTables tables, const AttentionShape& shape,
                             std::string name, AttentionKept kept)
    : runtime_(runtime),
      tables_(std::move(tables)),
      shape_(shape),
      name_(std::move(name)),
      differentiable_(true),
      dtype_(kept.dtype),
      sum_dtype_(accumulator_type(kept.dtype)),
      home_q_(std::move(kept.home_q)),
      home_k_(std::move(kept.home_k)),
      home_v_(std::move(kept.home_v)),
      q_(std::move(kept.q)),
      k_(std::move(kept.k)),
      v_(std::move(kept.v)),
      o_(std::move(kept.o)),
      lse_(std::move(kept.lse)) {
  DISTCA_CHECK(o_.size(0) == tables_.backward->home_rows, "{} kept {} rows, the plan gives this rank {}",
               name_, o_.size(0), tables_.backward->home_rows);
}

AttentionKept AttentionCall::release() {
  DISTCA_CHECK(differentiable_ && o_.defined() && !grad_taken_, "{} has nothing to hand over", name_);
  grad_taken_ = true;
  return {std::move(home_q_), std::move(home_k_), std::move(home_v_), std::move(q_), std::move(k_),
          std::move(v_),      std::move(o_),      std::move(lse_),    dtype_};
}

at::Tensor AttentionCall::take(std::initializer_list<int64_t> sizes, at::ScalarType dtype) {
  return runtime_.pool.take(at::IntArrayRef(sizes.begin(), sizes.size()), dtype, runtime_.device);
}

void AttentionCall::dispatch_begin(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const RankTables& tables = *tables_.forward;
  DISTCA_CHECK_INPUT(q.dim() == 3 && q.size(1) == shape_.heads && q.size(2) == shape_.head_dim,
                     "q of shape {} is not (rows, {}, {})", q.sizes(), shape_.heads, shape_.head_dim);
  for (const at::Tensor& x : {k, v}) {
    DISTCA_CHECK_INPUT(x.dim() == 3 && x.size(1) == shape_.kv_heads && x.size(2) == shape_.head_dim &&
                           x.scalar_type() == q.scalar_type(),
                       "k or v of shape {} is not (rows, {}, {}) in the type of q", x.sizes(),
                       shape_.kv_heads, shape_.head_dim);
  }
  for (const at::Tensor& x : {q, k, v}) {
    DISTCA_CHECK_INPUT(x.size(0) == tables.home_rows, "q, k or v has {} rows, the plan gives this rank {}",
                       x.size(0), tables.home_rows);
  }
  dtype_ = q.scalar_type();
  sum_dtype_ = accumulator_type(dtype_);
  home_q_ = q.contiguous();
  home_k_ = k.contiguous();
  home_v_ = v.contiguous();
  shipment_ = runtime_.shipment(tables);
  shipment_->to_servers(tables.q, home_q_, "forward/q");
  shipment_->to_servers(tables.kv, home_k_, "forward/k");
  shipment_->to_servers(tables.kv, home_v_, "forward/v");
  shipment_->start(runtime_.fabric, "dispatch", name_);
}

void AttentionCall::dispatch_end() {
  const auto arrived = shipment_->finish();
  q_ = arrived[0], k_ = arrived[1], v_ = arrived[2];
  if (!differentiable_ || runtime_.options.memory == AttentionMemory::kKeep) {
    home_q_ = home_k_ = home_v_ = at::Tensor();
  }
}

void AttentionCall::attend() {
  const RankTables& tables = *tables_.forward;
  // One row more than there are outputs: the empty partial of merge_rows.
  at::Tensor o = take({tables.o_rows + 1, shape_.heads, shape_.head_dim}, dtype_);
  at::Tensor lse = take({tables.o_rows + 1, shape_.heads}, sum_dtype_);
  o.select(0, tables.o_rows).zero_();
  lse.select(0, tables.o_rows).fill_(-std::numeric_limits<double>::infinity());
  WorkTimer timer(runtime_.stats.attend_s, runtime_.spans, WorkKind::kAttention, "attend");
  runtime_.kernel->forward(shape_, tables.tasks, q_, k_, v_, o, lse);
  timer.stop();
  if (!differentiable_ || runtime_.options.memory == AttentionMemory::kResend) q_ = k_ = v_ = at::Tensor();
  merge_here(o, lse);
}

void AttentionCall::merge_here(const at::Tensor& o_parts, const at::Tensor& lse_parts) {
  const MergeTable& merge = tables_.forward->server_merge;
  WorkTimer timer(runtime_.stats.merge_s, runtime_.spans, WorkKind::kMerge, "merge");
  if (merge.identity) {
    server_o_ = o_parts.narrow(0, 0, merge.rows);
    server_lse_ = lse_parts.narrow(0, 0, merge.rows);
  } else {
    server_o_ = take({merge.rows, shape_.heads, shape_.head_dim}, dtype_);
    server_lse_ = take({merge.rows, shape_.heads}, sum_dtype_);
    merge_rows(merge, {{o_parts, {}}, {lse_parts, {}}}, server_o_, server_lse_);
  }
}

void AttentionCall::collect_begin() {
  const RankTables& tables = *tables_.forward;
  shipment_ = runtime_.shipment(tables);
  shipment_->to_homes(tables.q, server_o_, "forward/o");
  shipment_->to_homes(tables.q, server_lse_, "forward/lse");
  shipment_->start(runtime_.fabric, "collect", name_);
}

at::Tensor AttentionCall::collect_end() {
  const auto arrived = shipment_->finish();
  WorkTimer timer(runtime_.stats.merge_s, runtime_.spans, WorkKind::kMerge, "merge");
  const MergeTable& merge = tables_.forward->q.returned;
  arrived[0].select(0, merge.empty).zero_();
  arrived[1].select(0, merge.empty).fill_(-std::numeric_limits<double>::infinity());
  at::Tensor o = take({merge.rows, shape_.heads, shape_.head_dim}, dtype_);
  lse_ = take({merge.rows, shape_.heads}, sum_dtype_);
  merge_rows(merge, {{arrived[0], server_o_}, {arrived[1], server_lse_}}, o, lse_);
  server_o_ = server_lse_ = at::Tensor();
  if (differentiable_) o_ = o;
  return o;
}

void AttentionCall::grad_collect_begin(const at::Tensor& dout) {
  DISTCA_CHECK(differentiable_ && o_.defined() && !grad_taken_,
               "the attention of {} has nothing to differentiate: backward runs once after each forward",
               name_);
  grad_taken_ = true;
  const RankTables& tables = *tables_.backward;
  WorkTimer timer(runtime_.stats.merge_s, runtime_.spans, WorkKind::kMerge, "merge");
  const at::Tensor d_o = dout.to(dtype_).contiguous();
  const at::Tensor delta = row_dots(d_o, o_, sum_dtype_);
  const at::Tensor row_numbers = at::stack({lse_, delta}, 1);  // (home_rows, 2, heads)
  timer.stop();
  shipment_ = runtime_.shipment(tables);
  shipment_->to_servers(tables.q, d_o, "backward/do");
  shipment_->to_servers(tables.q, row_numbers, "backward/lse_delta");
  if (runtime_.kernel->needs_output()) shipment_->to_servers(tables.q, o_, "backward/o");
  if (runtime_.options.memory == AttentionMemory::kResend) {
    shipment_->to_servers(tables.q, home_q_, "backward/q");
    shipment_->to_servers(tables.kv, home_k_, "backward/k");
    shipment_->to_servers(tables.kv, home_v_, "backward/v");
  }
  home_q_ = home_k_ = home_v_ = o_ = at::Tensor();
  shipment_->start(runtime_.fabric, "backward dispatch", name_);
}

void AttentionCall::grad_collect_end() {
  const auto arrived = shipment_->finish();
  size_t next = 0;
  grad_.dout = arrived[next++];
  grad_.lse = arrived[next].select(1, 0).contiguous();
  grad_.delta = arrived[next++].select(1, 1).contiguous();
  if (runtime_.kernel->needs_output()) grad_.out = arrived[next++];
  if (runtime_.options.memory == AttentionMemory::kResend) {
    q_ = arrived[next], k_ = arrived[next + 1], v_ = arrived[next + 2];
  }
}

void AttentionCall::grad_attend() {
  grad_.q = std::move(q_);
  grad_.k = std::move(k_);
  grad_.v = std::move(v_);
  grad_.dq = runtime_.pool.take(grad_.q.sizes(), sum_dtype_, runtime_.device);
  grad_.dk = runtime_.pool.take(grad_.k.sizes(), sum_dtype_, runtime_.device);
  grad_.dv = runtime_.pool.take(grad_.v.sizes(), sum_dtype_, runtime_.device);
  WorkTimer timer(runtime_.stats.attend_s, runtime_.spans, WorkKind::kAttention, "attend");
  runtime_.kernel->backward(shape_, tables_.backward->tasks, grad_);
}

void AttentionCall::grad_dispatch_begin() {
  const RankTables& tables = *tables_.backward;
  shipment_ = runtime_.shipment(tables);
  grad_.dq = grad_.dq.to(dtype_), grad_.dk = grad_.dk.to(dtype_), grad_.dv = grad_.dv.to(dtype_);
  shipment_->to_homes(tables.q, grad_.dq, "backward/dq");
  shipment_->to_homes(tables.kv, grad_.dk, "backward/dk");
  shipment_->to_homes(tables.kv, grad_.dv, "backward/dv");
  shipment_->start(runtime_.fabric, "backward collect", name_);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> AttentionCall::grad_dispatch_end() {
  const RankTables& tables = *tables_.backward;
  const auto arrived = shipment_->finish();
  shipment_.reset();
  WorkTimer timer(runtime_.stats.merge_s, runtime_.spans, WorkKind::kMerge, "merge");
  auto grads = std::make_tuple(sum_at_home(tables.q, arrived[0], grad_.dq),
                               sum_at_home(tables.kv, arrived[1], grad_.dk),
                               sum_at_home(tables.kv, arrived[2], grad_.dv));
  grad_ = KernelBackward();
  return grads;
}

at::Tensor AttentionCall::sum_at_home(const RowTable& table, const at::Tensor& arrived,
                                      const at::Tensor& own) {
  arrived.select(0, table.returned.empty).zero_();
  at::Tensor sum = take({table.home_rows, own.size(1), own.size(2)}, dtype_);
  sum_rows(table.returned, {arrived, own}, sum_dtype_, sum);
  return sum;
}

}  // namespace distca
