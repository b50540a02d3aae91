#include "attend/baselines.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>

#include <cmath>

namespace distca {

void set_pytorch_threads(int threads) {
  at::set_num_threads(threads);
}

std::string pytorch_blas() {
  return at::hasMKL() ? "MKL" : at::hasLAPACK() ? "a BLAS other than MKL" : "none";
}

struct MatrixProduct::Tensors {
  at::Tensor a, b;
};

MatrixProduct::MatrixProduct(int64_t size) : size_(size), tensors_(std::make_unique<Tensors>()) {
  c10::InferenceMode guard;
  *tensors_ = {at::randn({size, size}), at::randn({size, size})};
}

MatrixProduct::~MatrixProduct() = default;

double MatrixProduct::flops() const {
  return 2.0 * std::pow(static_cast<double>(size_), 3);
}

void MatrixProduct::run() {
  c10::InferenceMode guard;
  at::mm(tensors_->a, tensors_->b);
}

struct PytorchAttention::Document {
  at::Tensor q, k, v, dout, o, lse;
};

PytorchAttention::PytorchAttention(const std::vector<int64_t>& doc_lengths, int64_t heads, int64_t head_dim) {
  c10::InferenceMode guard;
  for (int64_t length : doc_lengths) {
    const auto make = [&] { return at::randn({1, heads, length, head_dim}); };
    documents_.push_back({make(), make(), make(), make(), {}, {}});
  }
}

PytorchAttention::~PytorchAttention() = default;

void PytorchAttention::forward() {
  c10::InferenceMode guard;
  for (Document& d : documents_) {
    std::tie(d.o, d.lse) = at::_scaled_dot_product_flash_attention_for_cpu(d.q, d.k, d.v, 0.0, true);
  }
}

void PytorchAttention::backward() {
  c10::InferenceMode guard;
  for (Document& d : documents_) {
    at::_scaled_dot_product_flash_attention_for_cpu_backward(d.dout, d.q, d.k, d.v, d.o, d.lse, 0.0, true);
  }
}

}  // namespace distca
