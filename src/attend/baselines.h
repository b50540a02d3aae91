// What PyTorch does with the same work: the peers that benchmarks hold the CPU kernel against. Seconds are
// thread CPU time where PyTorch runs on one thread, else wall time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace distca {

/// Threads that PyTorch uses from now on, and what library its matrix products come from.
void set_pytorch_threads(int threads);
std::string pytorch_blas();

/// at::mm of two float32 matrices of size × size.
class MatrixProduct {
 public:
  explicit MatrixProduct(int64_t size);
  ~MatrixProduct();

  double flops() const;
  void run();

 private:
  struct Tensors;
  int64_t size_;
  std::unique_ptr<Tensors> tensors_;
};

/// PyTorch's CPU attention in float32, causal, document by document; inputs lie as it likes them best, every
/// query head with keys of its own.
class PytorchAttention {
 public:
  PytorchAttention(const std::vector<int64_t>& doc_lengths, int64_t heads, int64_t head_dim);
  ~PytorchAttention();

  void forward();
  void backward();

 private:
  struct Document;
  std::vector<Document> documents_;
};

}  // namespace distca
