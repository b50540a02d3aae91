#include "attend/plain_memory_kernel.h"

#include "attend/cpu_kernels.h"
#include "attend/plain_memory.h"
#include "base/check.h"
#include "kernel/reference.h"

namespace distca {
namespace {

template <typename T>
AttentionForward<T> forward_args(const AttentionShape& shape, std::span<const KernelTask> tasks,
                                 const RowPair& q, const RowPair& k, const RowPair& v, const RowPair& o,
                                 const RowPair& lse) {
  AttentionForward<T> args;
  args.shape = shape;
  args.tasks = tasks;
  args.q = tensor_rows<const T>(q);
  args.k = tensor_rows<const T>(k);
  args.v = tensor_rows<const T>(v);
  args.o = tensor_rows<T>(o);
  args.lse = tensor_rows<Accumulator<T>>(lse);
  return args;
}

template <typename T>
AttentionBackward<T> backward_args(const AttentionShape& shape, std::span<const KernelTask> tasks,
                                   KernelBackward& t) {
  AttentionBackward<T> args;
  args.shape = shape;
  args.tasks = tasks;
  args.q = tensor_rows<const T>(t.q);
  args.k = tensor_rows<const T>(t.k);
  args.v = tensor_rows<const T>(t.v);
  args.dout = tensor_rows<const T>(t.dout);
  args.lse = tensor_rows<const Accumulator<T>>(t.lse);
  args.delta = tensor_rows<const Accumulator<T>>(t.delta);
  args.q_rows = t.dq.size(0);
  args.kv_rows = t.dk.size(0);
  args.dq = static_cast<Accumulator<T>*>(t.dq.data_ptr());
  args.dk = static_cast<Accumulator<T>*>(t.dk.data_ptr());
  args.dv = static_cast<Accumulator<T>*>(t.dv.data_ptr());
  return args;
}

void check_contiguous(std::initializer_list<RowPair> pairs) {
  for (const RowPair& pair : pairs) {
    for (const at::Tensor& tensor : {pair.first, pair.second}) {
      DISTCA_CHECK(!tensor.defined() || (tensor.is_contiguous() && tensor.device().is_cpu()),
                   "an attention kernel takes contiguous CPU tensors; one of shape {} isn't", tensor.sizes());
    }
  }
}

class ReferenceKernel : public PlainMemoryKernel {
 public:
  std::string name() const override { return "reference"; }

 protected:
  void run(const AttentionForward<float>& args) override { reference_attention_forward(args); }
  void run(const AttentionForward<double>& args) override { reference_attention_forward(args); }
  void run(const AttentionForward<BFloat16>& args) override { reference_attention_forward(args); }
  void run(const AttentionBackward<float>& args) override { reference_attention_backward(args); }
  void run(const AttentionBackward<double>& args) override { reference_attention_backward(args); }
  void run(const AttentionBackward<BFloat16>& args) override { reference_attention_backward(args); }
};

}  // namespace

void PlainMemoryKernel::forward(const AttentionShape& shape, const KernelTasks& tasks, const RowPair& q,
                                const RowPair& k, const RowPair& v, const RowPair& o, const RowPair& lse) {
  check_contiguous({q, k, v, o, lse});
  for_element_type(q.first.scalar_type(),
                   [&]<typename T>(T) { run(forward_args<T>(shape, tasks.list, q, k, v, o, lse)); });
}

void PlainMemoryKernel::backward(const AttentionShape& shape, const KernelTasks& tasks,
                                 KernelBackward& tensors) {
  check_contiguous({tensors.q, tensors.k, tensors.v, tensors.dout, tensors.lse, tensors.delta, tensors.dq,
                    tensors.dk, tensors.dv});
  for_element_type(tensors.q.first.scalar_type(),
                   [&]<typename T>(T) { run(backward_args<T>(shape, tasks.list, tensors)); });
}

std::unique_ptr<AttentionKernel> make_reference_kernel(int) {
  return std::make_unique<ReferenceKernel>();
}

}  // namespace distca
