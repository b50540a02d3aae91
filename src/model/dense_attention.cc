#include "model/dense_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>

#include <cmath>
#include <limits>

#include "base/check.h"

namespace distca {
namespace {

/// Of one document; all (tokens, heads, head_dim).
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const int64_t tokens = q.size(0), group = q.size(1) / k.size(1);
  const auto heads_first = [](const at::Tensor& x) { return x.transpose(0, 1); };
  const at::Tensor keys = heads_first(k).repeat_interleave(group, 0);
  const at::Tensor values = heads_first(v).repeat_interleave(group, 0);
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(2)));
  const at::Tensor future = at::ones({tokens, tokens}, q.options().dtype(at::kBool)).triu(1);
  const at::Tensor scores = (at::matmul(heads_first(q), keys.transpose(1, 2)) * scale)
                                .masked_fill(future, -std::numeric_limits<double>::infinity());
  return heads_first(at::matmul(at::softmax(scores, -1), values));
}

}  // namespace

at::Tensor dense_attention(const Qkv& qkv, const std::vector<int64_t>& doc_lengths) {
  std::vector<at::Tensor> outputs;
  int64_t row = 0;
  for (const int64_t length : doc_lengths) {
    DISTCA_CHECK(length >= 0 && row + length <= qkv.q.size(0), "documents are longer than the {} rows",
                 qkv.q.size(0));
    const auto rows = [&](const at::Tensor& x) { return x.narrow(0, row, length); };
    outputs.push_back(attend(rows(qkv.q), rows(qkv.k), rows(qkv.v)));
    row += length;
  }
  const at::Tensor padding = qkv.q.narrow(0, row, qkv.q.size(0) - row);
  outputs.push_back(padding * 0);
  return at::cat(outputs, 0);
}

}  // namespace distca
