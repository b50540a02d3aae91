// Core attention kernels as tensors see them: one call over all CA-tasks of a rank. Kernels are chosen by
// name and device, and a program can register its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attend/kernel_tables.h"
#include "attend/rows.h"
#include "kernel/attention.h"

namespace distca {

/// Float32, or float64 for float64 tensors: what LSE, δ and gradients are kept in.
at::ScalarType accumulator_type(at::ScalarType dtype);

/// Tensors of a backward call, by query row (q, dout, out, lse, delta, dq) and key row (k, v, dk, dv).
struct KernelBackward {
  RowPair q, k, v, dout;
  RowPair out;            // merged O; defined only for kernels that need it
  RowPair lse, delta;     // (q_rows, heads) in the accumulator type
  at::Tensor dq, dk, dv;  // outputs, in the accumulator type; every row is written
};

class AttentionKernel {
 public:
  virtual ~AttentionKernel() = default;
  virtual std::string name() const = 0;
  /// Whether backward reads the merged O (flash attention) rather than δ alone.
  virtual bool needs_output() const { return false; }
  /// What this kernel wants to know of a task list, on the CPU; null: nothing, or it makes that in each call.
  /// From any thread.
  virtual std::shared_ptr<const KernelTables> prepare(const AttentionShape& /*shape*/,
                                                      std::span<const KernelTask> /*tasks*/,
                                                      const FirstRows& /*first*/) const {
    return nullptr;
  }
  /// q (·, heads, head_dim), k and v (·, kv_heads, head_dim), contiguous; writes the o rows (·, heads,
  /// head_dim) and lse rows (·, heads) of the tasks. A task's rows stand in one tensor of a pair.
  virtual void forward(const AttentionShape& shape, const KernelTasks& tasks, const RowPair& q,
                       const RowPair& k, const RowPair& v, const RowPair& o, const RowPair& lse) = 0;
  virtual void backward(const AttentionShape& shape, const KernelTasks& tasks, KernelBackward& tensors) = 0;
};

using KernelFactory = std::function<std::unique_ptr<AttentionKernel>(int threads)>;

/// Makes `name` known. "auto" is reserved.
void register_attention_kernel(const std::string& name, at::DeviceType device, KernelFactory factory);

/// The kernel of that name for that device, working on `threads` threads where it uses any; "auto" takes the
/// first registered for the device. Throws InputError that lists the names there are.
std::unique_ptr<AttentionKernel> make_attention_kernel(const std::string& name, at::DeviceType device,
                                                       int threads);

std::vector<std::string> attention_kernel_names(at::DeviceType device);

}  // namespace distca
