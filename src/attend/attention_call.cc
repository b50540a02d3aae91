#include "attend/attention_call.h"

#include <ATen/Parallel.h>

#include <limits>

#include "attend/merge.h"
#include "attend/rows.h"
#include "attend/work_timer.h"
#include "base/check.h"

namespace distca {
namespace {

constexpr double kEmptyLse = -std::numeric_limits<double>::infinity();

// Only where rows are split does anyone read the row that stands for an empty part.
void clear_empty(at::Tensor& rows, int64_t empty, double value) {
  if (!rows.is_meta()) rows.select(0, empty).fill_(value);
}

/// Results of copies go where their rows were copied from.
void put_back(const RowTable& table, const at::Tensor& home, const at::Tensor& rest) {
  move_rows(home, table.home_back, rest, table.home_copies);
  move_rows(rest, table.arrived_back, rest, table.arrived_copies);
}

}  // namespace

AttentionRuntime::AttentionRuntime(Fabric& fabric, const RuntimeOptions& options, at::Device device)
    : fabric(fabric),
      options(options),
      device(device),
      kernel(make_attention_kernel(options.kernel, device.type(), options.threads)) {
  // Ranks share the cores of a machine: without this each would start a team of threads for every tensor
  // operation.
  at::set_num_threads(options.threads);
}

std::unique_ptr<Shipment> AttentionRuntime::shipment() {
  return std::make_unique<Shipment>(pool, stats, spans, signal.get());
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
      rest_q_(std::move(kept.rest_q)),
      rest_k_(std::move(kept.rest_k)),
      rest_v_(std::move(kept.rest_v)),
      o_(std::move(kept.o)),
      lse_(std::move(kept.lse)) {
  DISTCA_CHECK(o_.size(0) == tables_.backward->home_rows, "{} kept {} rows, the plan gives this rank {}",
               name_, o_.size(0), tables_.backward->home_rows);
}

AttentionKept AttentionCall::release() {
  DISTCA_CHECK(differentiable_ && o_.defined() && !grad_taken_, "{} has nothing to hand over", name_);
  grad_taken_ = true;
  return {std::move(home_q_), std::move(home_k_), std::move(home_v_),
          std::move(rest_q_), std::move(rest_k_), std::move(rest_v_),
          std::move(o_),      std::move(lse_),    dtype_};
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
  shipment_ = runtime_.shipment();
  shipment_->to_servers(tables.q, home_q_, "forward/q");
  shipment_->to_servers(tables.kv, home_k_, "forward/k");
  shipment_->to_servers(tables.kv, home_v_, "forward/v");
  shipment_->start(runtime_.fabric, "dispatch", name_);
}

void AttentionCall::take_outputs() {
  const RankTables& tables = *tables_.forward;
  const int64_t rest = tables.o_rows - tables.home_rows;
  o_ = take({tables.home_rows, shape_.heads, shape_.head_dim}, dtype_);
  lse_ = take({tables.home_rows, shape_.heads}, sum_dtype_);
  rest_o_ = take({rest, shape_.heads, shape_.head_dim}, dtype_);
  rest_lse_ = take({rest, shape_.heads}, sum_dtype_);
}

void AttentionCall::run_forward(const KernelTasks& tasks, const char* what) {
  const WorkTimer timer(runtime_.stats.attend_s, runtime_.spans, WorkKind::kAttention, what);
  runtime_.kernel->forward(shape_, tasks, {home_q_, rest_q_}, {home_k_, rest_k_}, {home_v_, rest_v_},
                           {o_, rest_o_}, {lse_, rest_lse_});
}

void AttentionCall::attend_local() {
  const RankTables& tables = *tables_.forward;
  const bool apart = tables.kernel == nullptr && !tables.local_tasks.empty() && !tables.other_tasks.empty();
  if (!apart || attended_locally_) return;
  take_outputs();
  run_forward(tables.local_tasks, "attend local");
  attended_locally_ = true;
}

void AttentionCall::dispatch_end() {
  const auto arrived = shipment_->arrive();
  leaving_ = std::move(shipment_);
  rest_q_ = arrived[0], rest_k_ = arrived[1], rest_v_ = arrived[2];
}

void AttentionCall::attend() {
  const RankTables& tables = *tables_.forward;
  if (!attended_locally_) take_outputs();
  run_forward(
      attended_locally_ ? KernelTasks(tables.other_tasks) : KernelTasks(tables.tasks, tables.kernel.get()),
      "attend");
  if (!differentiable_) home_q_ = home_k_ = home_v_ = at::Tensor();
  if (!differentiable_ || runtime_.options.memory == AttentionMemory::kResend)
    rest_q_ = rest_k_ = rest_v_ = at::Tensor();
  merge_here();
}

void AttentionCall::merge_here() {
  const RankTables& tables = *tables_.forward;
  WorkTimer timer(runtime_.stats.merge_s, runtime_.spans, WorkKind::kMerge, "merge");
  const int64_t empty = tables.o_rows - tables.home_rows - 1;
  clear_empty(rest_o_, empty, 0);
  clear_empty(rest_lse_, empty, kEmptyLse);
  const Partials parts = {{o_, rest_o_}, {lse_, rest_lse_}};
  merge_rows(tables.merge_home, parts, o_, lse_);
  merge_rows(tables.merge_rest, parts, rest_o_, rest_lse_);
  put_back(tables.q, o_, rest_o_);
  put_back(tables.q, lse_, rest_lse_);
}

void AttentionCall::collect_begin() {
  const RankTables& tables = *tables_.forward;
  shipment_ = runtime_.shipment();
  shipment_->to_homes(tables.q, rest_o_, "forward/o");
  shipment_->to_homes(tables.q, rest_lse_, "forward/lse");
  shipment_->start(runtime_.fabric, "collect", name_);
}

at::Tensor AttentionCall::collect_end() {
  auto arrived = shipment_->finish();
  std::exchange(leaving_, nullptr)->leave();
  rest_o_ = rest_lse_ = at::Tensor();
  WorkTimer timer(runtime_.stats.merge_s, runtime_.spans, WorkKind::kMerge, "merge");
  const RowTable& table = tables_.forward->q;
  clear_empty(arrived[0], table.sent_rows, 0);
  clear_empty(arrived[1], table.sent_rows, kEmptyLse);
  at::Tensor o = o_;
  merge_rows(table.returned, {{arrived[0], o}, {arrived[1], lse_}}, o, lse_);
  if (!differentiable_) o_ = at::Tensor();
  return o;
}

void AttentionCall::grad_collect_begin(const at::Tensor& dout) {
  DISTCA_CHECK(differentiable_ && o_.defined() && !grad_taken_,
               "the attention of {} has nothing to differentiate: backward runs once after each forward",
               name_);
  grad_taken_ = true;
  const RankTables& tables = *tables_.backward;
  grad_.dout = dout.to(dtype_).contiguous();
  grad_.lse = lse_;
  {
    WorkTimer timer(runtime_.stats.attend_s, runtime_.spans, WorkKind::kAttention, "delta");
    grad_.delta = row_dots(grad_.dout.first, o_, sum_dtype_);
  }
  shipment_ = runtime_.shipment();
  shipment_->to_servers(tables.q, grad_.dout.first, "backward/do");
  shipment_->to_servers(tables.q, grad_.lse.first, "backward/lse");
  shipment_->to_servers(tables.q, grad_.delta.first, "backward/delta");
  if (runtime_.kernel->needs_output()) {
    grad_.out = o_;
    shipment_->to_servers(tables.q, o_, "backward/o");
  }
  if (runtime_.options.memory == AttentionMemory::kResend) {
    shipment_->to_servers(tables.q, home_q_, "backward/q");
    shipment_->to_servers(tables.kv, home_k_, "backward/k");
    shipment_->to_servers(tables.kv, home_v_, "backward/v");
  }
  o_ = at::Tensor();
  shipment_->start(runtime_.fabric, "backward dispatch", name_);
}

void AttentionCall::grad_collect_end() {
  const auto arrived = shipment_->arrive();
  leaving_ = std::move(shipment_);
  size_t next = 0;
  grad_.dout.second = arrived[next++];
  grad_.lse.second = arrived[next++];
  grad_.delta.second = arrived[next++];
  if (runtime_.kernel->needs_output()) grad_.out.second = arrived[next++];
  if (runtime_.options.memory == AttentionMemory::kResend)
    rest_q_ = arrived[next], rest_k_ = arrived[next + 1], rest_v_ = arrived[next + 2];
}

void AttentionCall::grad_attend() {
  const RankTables& tables = *tables_.backward;
  grad_.q = {std::move(home_q_), std::move(rest_q_)};
  grad_.k = {std::move(home_k_), std::move(rest_k_)};
  grad_.v = {std::move(home_v_), std::move(rest_v_)};
  grad_.dq = take({tables.q.rows(), shape_.heads, shape_.head_dim}, sum_dtype_);
  grad_.dk = take({tables.kv.rows(), shape_.kv_heads, shape_.head_dim}, sum_dtype_);
  grad_.dv = take({tables.kv.rows(), shape_.kv_heads, shape_.head_dim}, sum_dtype_);
  WorkTimer timer(runtime_.stats.attend_s, runtime_.spans, WorkKind::kAttention, "attend");
  runtime_.kernel->backward(shape_, {tables.tasks, tables.kernel.get()}, grad_);
}

void AttentionCall::grad_dispatch_begin() {
  const RankTables& tables = *tables_.backward;
  shipment_ = runtime_.shipment();
  {
    WorkTimer timer(runtime_.stats.merge_s, runtime_.spans, WorkKind::kMerge, "merge");
    for (at::Tensor* gradient : {&grad_.dq, &grad_.dk, &grad_.dv}) {
      const RowTable& table = gradient == &grad_.dq ? tables.q : tables.kv;
      *gradient = gradient->to(dtype_);
      put_back(table, gradient->narrow(0, 0, table.home_rows), rest_of(table, *gradient));
    }
  }
  shipment_->to_homes(tables.q, rest_of(tables.q, grad_.dq), "backward/dq");
  shipment_->to_homes(tables.kv, rest_of(tables.kv, grad_.dk), "backward/dk");
  shipment_->to_homes(tables.kv, rest_of(tables.kv, grad_.dv), "backward/dv");
  shipment_->start(runtime_.fabric, "backward collect", name_);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> AttentionCall::grad_dispatch_end() {
  const RankTables& tables = *tables_.backward;
  const auto arrived = shipment_->finish();
  shipment_.reset();
  std::exchange(leaving_, nullptr)->leave();
  WorkTimer timer(runtime_.stats.merge_s, runtime_.spans, WorkKind::kMerge, "merge");
  auto grads = std::make_tuple(sum_at_home(tables.q, arrived[0], grad_.dq),
                               sum_at_home(tables.kv, arrived[1], grad_.dk),
                               sum_at_home(tables.kv, arrived[2], grad_.dv));
  grad_ = KernelBackward();
  return grads;
}

at::Tensor AttentionCall::rest_of(const RowTable& table, const at::Tensor& rows) const {
  return rows.narrow(0, table.home_rows, table.rest_rows());
}

at::Tensor AttentionCall::sum_at_home(const RowTable& table, at::Tensor arrived, const at::Tensor& own) {
  clear_empty(arrived, table.sent_rows, 0);
  at::Tensor sum = own.narrow(0, 0, table.home_rows);
  sum_rows(table.returned, {arrived, sum}, sum_dtype_, sum);
  return sum;
}

}  // namespace distca
