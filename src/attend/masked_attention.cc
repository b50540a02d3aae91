#include "attend/masked_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>

#include <limits>

namespace distca::testing {
namespace {

/// For each packed row its sequence, its place there, and the sequence's length.
struct Places {
  at::Tensor sequence, place, length;
};

Places places_of(const at::Tensor& cu_seqlens, int64_t rows) {
  const at::Tensor ends = cu_seqlens.to(at::kLong), row = at::arange(rows, ends.options());
  const int64_t sequences = ends.size(0) - 1;
  const at::Tensor begin = ends.narrow(0, 0, sequences), end = ends.narrow(0, 1, sequences);
  const at::Tensor sequence = row.unsqueeze(1).ge(end.unsqueeze(0)).sum(1);
  return {sequence, row - begin.index_select(0, sequence), (end - begin).index_select(0, sequence)};
}

/// Which keys a query sees, (q rows, k rows): bottom-right causal, or all of its sequence.
at::Tensor seen_keys(const FlashCallTables& call, int64_t q_rows, int64_t k_rows) {
  const Places q = places_of(call.cu_seqlens_q, q_rows), k = places_of(call.cu_seqlens_k, k_rows);
  at::Tensor seen = q.sequence.unsqueeze(1).eq(k.sequence.unsqueeze(0));
  const at::Tensor last = q.place.unsqueeze(1) - q.length.unsqueeze(1) + k.length.unsqueeze(0),
                   key = k.place.unsqueeze(0);
  if (call.causal) seen = seen.logical_and(key.le(last));
  if (call.window_left >= 0) seen = seen.logical_and(key.ge(last - call.window_left));
  return seen;
}

/// (rows, kv_heads, head_dim) as (heads, rows, head_dim) in the accumulator type; back, summed over the query
/// heads of a key/value head.
at::Tensor by_heads(const at::Tensor& x, int64_t heads) {
  const int64_t rows = x.size(0), kv_heads = x.size(1), width = x.size(2);
  return x.to(accumulator_type(x.scalar_type()))
      .unsqueeze(2)
      .expand({rows, kv_heads, heads / kv_heads, width})
      .reshape({rows, heads, width})
      .transpose(0, 1);
}
at::Tensor by_rows(const at::Tensor& x, const at::Tensor& like) {
  const int64_t rows = like.size(0), kv_heads = like.size(1);
  return x.transpose(0, 1)
      .reshape({rows, kv_heads, x.size(0) / kv_heads, like.size(2)})
      .sum(2)
      .to(like.scalar_type());
}

class MaskedAttention : public PackedAttention {
 public:
  void check_type(at::ScalarType) const override {}

  std::pair<at::Tensor, at::Tensor> forward(const FlashCallTables& call, double scale, const at::Tensor& q,
                                            const at::Tensor& k, const at::Tensor& v) const override {
    const at::Tensor s = scores(call, scale, q, k), lse = at::logsumexp(s, 2);
    const at::Tensor p = (s - lse.unsqueeze(2)).exp();
    return {by_rows(at::matmul(p, by_heads(v, q.size(1))), q), lse};
  }

  std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const FlashCallTables& call, double scale,
                                                          const at::Tensor& dout, const at::Tensor& q,
                                                          const at::Tensor& k, const at::Tensor& v,
                                                          const at::Tensor& o,
                                                          const at::Tensor& lse) const override {
    const int64_t heads = q.size(1);
    const at::Tensor p = (scores(call, scale, q, k) - lse.unsqueeze(2)).exp();
    const at::Tensor grad = by_heads(dout, heads);
    const at::Tensor delta = (grad * by_heads(o, heads)).sum(2, /*keepdim=*/true);
    const at::Tensor ds = (at::matmul(grad, by_heads(v, heads).transpose(1, 2)) - delta) * p * scale;
    return {by_rows(at::matmul(ds, by_heads(k, heads)), q),
            by_rows(at::matmul(ds.transpose(1, 2), by_heads(q, heads)), k),
            by_rows(at::matmul(p.transpose(1, 2), grad), v)};
  }

 private:
  static at::Tensor scores(const FlashCallTables& call, double scale, const at::Tensor& q,
                           const at::Tensor& k) {
    const int64_t heads = q.size(1);
    const at::Tensor s = at::matmul(by_heads(q, heads), by_heads(k, heads).transpose(1, 2)) * scale;
    return s.masked_fill(seen_keys(call, q.size(0), k.size(0)).logical_not(),
                         -std::numeric_limits<double>::infinity());
  }
};

}  // namespace

std::unique_ptr<PackedAttention> make_masked_attention() {
  return std::make_unique<MaskedAttention>();
}

void register_masked_kernel(const char* name, at::DeviceType device) {
  register_attention_kernel(name, device, [name](int) -> std::unique_ptr<AttentionKernel> {
    return make_packing_kernel(name, make_masked_attention());
  });
}

}  // namespace distca::testing
