#include "attend/testing.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>

namespace distca::testing {
namespace {

// (tokens, heads, head_dim) to (1, heads, tokens, head_dim), key/value heads repeated for each of their query
// heads.
at::Tensor to_heads_first(const at::Tensor& x, int64_t repeats) {
  return x.repeat_interleave(repeats, 1).transpose(0, 1).unsqueeze(0);
}

// In blocks of rows, so that no (length, length) matrix is held.
at::Tensor dense_lse(const at::Tensor& q, const at::Tensor& k, double scale) {
  const int64_t length = q.size(2);
  at::Tensor lse = at::empty({q.size(1), length}, q.options());
  for (int64_t begin = 0; begin < length; begin += 256) {
    const int64_t end = std::min(length, begin + 256);
    const at::Tensor keys = k[0].narrow(1, 0, end);
    at::Tensor scores = q[0].narrow(1, begin, end - begin).matmul(keys.transpose(1, 2)) * scale;
    const at::Tensor seen = at::ones({end - begin, end}, q.options()).tril(begin);
    scores = scores.masked_fill(seen == 0, -std::numeric_limits<double>::infinity());
    lse.narrow(1, begin, end - begin).copy_(scores.logsumexp(2));
  }
  return lse.transpose(0, 1);
}

// Inputs are of order 1. Where a gradient is 0 but for rounding (documents of one token), errors are taken
// against this.
constexpr double kSmallestScale = .01;

// Rows of a rank's buffer that hold tokens, and where these stand in the dense tensors.
struct TokenRows {
  at::Tensor home, dense;
};

TokenRows token_rows(const std::vector<int64_t>& rows) {
  std::vector<int64_t> home, dense;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0) continue;
    home.push_back(static_cast<int64_t>(i));
    dense.push_back(rows[i]);
  }
  const auto options = at::TensorOptions().dtype(at::kLong);
  return {at::tensor(home, options), at::tensor(dense, options)};
}

}  // namespace

DenseTensors random_inputs(int64_t tokens, const AttentionShape& shape, at::ScalarType dtype, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  const auto draw = [&](int64_t heads) {
    return at::randn({tokens, heads, shape.head_dim}, generator, at::TensorOptions().dtype(at::kDouble))
        .to(dtype);
  };
  DenseTensors out;
  out.q = draw(shape.heads), out.k = draw(shape.kv_heads), out.v = draw(shape.kv_heads),
  out.dout = draw(shape.heads);
  return out;
}

void dense_attention(const std::vector<int64_t>& doc_lengths, const AttentionShape& shape, DenseTensors& t) {
  const at::Tensor q = t.q.detach().clone().requires_grad_(), k = t.k.detach().clone().requires_grad_(),
                   v = t.v.detach().clone().requires_grad_();
  const int64_t repeats = shape.heads / shape.kv_heads;
  t.lse = at::empty({t.q.size(0), t.q.size(1)}, t.q.options());
  std::vector<at::Tensor> outputs = {at::zeros({0, shape.heads, shape.head_dim}, t.q.options())};
  int64_t begin = 0;
  for (const int64_t length : doc_lengths) {
    if (length == 0) continue;
    const at::Tensor doc_q = to_heads_first(q.narrow(0, begin, length), 1);
    const at::Tensor doc_k = to_heads_first(k.narrow(0, begin, length), repeats);
    const at::Tensor doc_v = to_heads_first(v.narrow(0, begin, length), repeats);
    const at::Tensor o = at::scaled_dot_product_attention(doc_q, doc_k, doc_v, {}, 0.0, true, shape.scale);
    outputs.push_back(o[0].transpose(0, 1));
    t.lse.narrow(0, begin, length).copy_(dense_lse(doc_q.detach(), doc_k.detach(), shape.scale));
    begin += length;
  }
  const at::Tensor o = at::cat(outputs, 0);
  if (begin > 0) o.backward(t.dout);
  t.o = o.detach();
  const auto grad = [](const at::Tensor& x) { return x.grad().defined() ? x.grad() : at::zeros_like(x); };
  t.dq = grad(q), t.dk = grad(k), t.dv = grad(v);
}

std::vector<int64_t> dense_rows(const Layout& layout, int32_t rank) {
  std::vector<int64_t> starts = {0};
  for (const int64_t length : layout.doc_lengths) starts.push_back(starts.back() + length);
  std::vector<int64_t> rows(rank < layout.ranks ? layout.rows : 0, -1);
  for (const Shard& shard : layout.shards) {
    if (shard.home != rank) continue;
    for (int64_t i = 0; i < shard.tokens.size(); ++i) {
      rows[shard.row + i] = starts[shard.doc] + shard.tokens.begin + i;
    }
  }
  return rows;
}

at::Tensor home_rows(const at::Tensor& dense, const std::vector<int64_t>& rows) {
  std::vector<int64_t> sizes = dense.sizes().vec();
  sizes[0] = static_cast<int64_t>(rows.size());
  const TokenRows tokens = token_rows(rows);
  return at::zeros(sizes, dense.options()).index_copy_(0, tokens.home, dense.index_select(0, tokens.dense));
}

double relative_error(const at::Tensor& home, const at::Tensor& dense, const std::vector<int64_t>& rows) {
  const TokenRows tokens = token_rows(rows);
  if (tokens.home.numel() == 0) return 0;
  const at::Tensor difference = home.index_select(0, tokens.home) - dense.index_select(0, tokens.dense);
  return difference.abs().max().item<double>() / std::max(dense.abs().max().item<double>(), kSmallestScale);
}

HomeTensors run_layer(AttentionRuntime& runtime, const BatchTables& tables, const AttentionShape& shape,
                      const DenseTensors& dense, const std::vector<int64_t>& rows) {
  const auto home = [&](const at::Tensor& x) { return home_rows(x, rows).to(runtime.device); };
  const at::Tensor q = home(dense.q).requires_grad_(), k = home(dense.k).requires_grad_(),
                   v = home(dense.v).requires_grad_();
  const auto call = std::make_shared<AttentionCall>(runtime, tables, shape, "the tested layer", true);
  at::Tensor token = attend(call, dispatch_end(call, dispatch_begin(call, q, k, v)));
  const at::Tensor o = collect_end(call, collect_begin(call, token));
  o.backward(home(dense.dout));
  return {o.detach().cpu(), call->lse().cpu(), q.grad().cpu(), k.grad().cpu(), v.grad().cpu()};
}

}  // namespace distca::testing
