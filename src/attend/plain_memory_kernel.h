// What the kernels of kernel/ have in common as tensors see them: contiguous CPU tensors become plain memory,
// by element type.
#pragma once

#include "attend/attention_kernel.h"

namespace distca {

class PlainMemoryKernel : public AttentionKernel {
 public:
  void forward(const AttentionShape& shape, const KernelTasks& tasks, const RowPair& q, const RowPair& k,
               const RowPair& v, const RowPair& o, const RowPair& lse) override;
  void backward(const AttentionShape& shape, const KernelTasks& tasks, KernelBackward& tensors) override;

 protected:
  virtual void run(const AttentionForward<float>& args) = 0;
  virtual void run(const AttentionForward<double>& args) = 0;
  virtual void run(const AttentionForward<BFloat16>& args) = 0;
  virtual void run(const AttentionBackward<float>& args) = 0;
  virtual void run(const AttentionBackward<double>& args) = 0;
  virtual void run(const AttentionBackward<BFloat16>& args) = 0;
};

}  // namespace distca
