// One layer's core attention of one nano-batch, step by step. The steps run in this order, other work in
// between:
//
//   dispatch_begin → attend_local → dispatch_end → attend → collect_begin → collect_end            forward
//   grad_collect_begin → grad_collect_end → grad_attend → grad_dispatch_begin → grad_dispatch_end  backward
//
// Backward uses the merged O and LSE only: P = exp(S − LSE), δ = Σ dO·O. core_attention.h wraps the steps for
// autograd.
#pragma once

#include <memory>
#include <string>
#include <tuple>

#include "attend/attention_kernel.h"
#include "attend/buffer_pool.h"
#include "attend/rank_tables.h"
#include "attend/shipment.h"
#include "comm/fabric.h"

namespace distca {

/// Who holds Q, K, V between forward and backward: servers what they got, or homes what they sent.
enum class AttentionMemory { kKeep, kResend };

struct RuntimeOptions {
  std::string kernel = "auto";
  int threads = 1;  // of the kernel, and of the calling thread's tensor operations
  AttentionMemory memory = AttentionMemory::kResend;
};

/// What the attention of one rank works with, for all layers and steps. Used by one thread at a time.
struct AttentionRuntime {
  AttentionRuntime(Fabric& fabric, const RuntimeOptions& options = {}, at::Device device = at::kCPU);

  Fabric& fabric;
  RuntimeOptions options;
  at::Device device;
  std::unique_ptr<AttentionKernel> kernel;
  BufferPool pool;
  AttentionStats stats;
  SpanLog* spans = nullptr;            // where steps are recorded; its place is the caller's to set
  std::unique_ptr<SignalRows> signal;  // where exchanges move one byte a peer

  /// An exchange by these tables.
  std::unique_ptr<Shipment> shipment();
};

/// Tables of a nano-batch: forward's and backward's, the same where both run by one plan.
struct BatchTables {
  std::shared_ptr<const RankTables> forward, backward;
};

/// What a call leaves for its backward, where that runs by another plan in another call: a pipeline's
/// backward tick holds other nano-batches than any of its forward ticks.
struct AttentionKept {
  at::Tensor home_q, home_k, home_v;
  at::Tensor rest_q, rest_k, rest_v;  // on the server, see RowTable: keep
  at::Tensor o, lse;                  // at home, merged
  at::ScalarType dtype = at::kFloat;
};

class AttentionCall {
 public:
  /// `name` stands in time-outs: "layer 3 of nano-batch 1". Without `differentiable` nothing is kept for
  /// backward. Throws Error when memory is kKeep and the two tables differ.
  AttentionCall(AttentionRuntime& runtime, BatchTables tables, const AttentionShape& shape, std::string name,
                bool differentiable);

  /// A call that runs backward only, by `tables.backward`. `kept` is this rank's own at home, and with keep
  /// what its server has for the tasks of these tables; rows of a rank without a home are 0.
  AttentionCall(AttentionRuntime& runtime, BatchTables tables, const AttentionShape& shape, std::string name,
                AttentionKept kept);

  /// After collect_end(): hands over what backward needs; backward is then another call's.
  AttentionKept release();

  /// q (home_rows, heads, head_dim), k and v (home_rows, kv_heads, head_dim); a dedicated server gives 0
  /// rows.
  void dispatch_begin(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
  /// Tasks whose rows are all at home, while the others' travel. May be left out, and does nothing where the
  /// kernel takes all tasks of a rank as one (AttentionKernel::prepare) or all are of one kind.
  void attend_local();
  /// Whether dispatch_end() would return at once.
  bool arrived() { return shipment_->arrived(); }
  void dispatch_end();
  void attend();
  void collect_begin();
  /// O (home_rows, heads, head_dim); rows of padding are 0.
  at::Tensor collect_end();

  void grad_collect_begin(const at::Tensor& dout);
  void grad_collect_end();
  void grad_attend();
  void grad_dispatch_begin();
  /// dQ, dK, dV in the type and shape of q, k, v: sums over servers in rank order, in the accumulator type.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> grad_dispatch_end();

  /// Merged LSE (home_rows, heads) of the last forward; −inf on padding.
  const at::Tensor& lse() const { return lse_; }

 private:
  void take_outputs();
  void run_forward(const KernelTasks& tasks, const char* what);
  void merge_here();
  at::Tensor sum_at_home(const RowTable& table, at::Tensor arrived, const at::Tensor& own);
  at::Tensor rest_of(const RowTable& table, const at::Tensor& rows) const;
  at::Tensor take(std::initializer_list<int64_t> sizes, at::ScalarType dtype);

  AttentionRuntime& runtime_;
  BatchTables tables_;
  AttentionShape shape_;
  std::string name_;
  bool differentiable_;
  at::ScalarType dtype_ = at::kFloat, sum_dtype_ = at::kFloat;
  std::unique_ptr<Shipment> shipment_;
  std::unique_ptr<Shipment> leaving_;  // a dispatch that has arrived here, and not yet everywhere
  bool attended_locally_ = false;
  at::Tensor home_q_, home_k_, home_v_;
  at::Tensor rest_q_, rest_k_, rest_v_;  // on the server
  at::Tensor rest_o_, rest_lse_;
  at::Tensor o_, lse_;  // at home; merged after collect
  KernelBackward grad_;
  bool grad_taken_ = false;
};

}  // namespace distca
