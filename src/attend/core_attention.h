// Disaggregated core attention as autograd sees it: five differentiable steps whose backward runs the
// mirrored exchange, in the mirrored order, so that a schedule which interleaves the steps of two
// nano-batches is interleaved in backward too.
//
//   AttentionRuntime runtime(fabric);
//   BatchTables tables = prepare(runtime, plan);
//   at::Tensor o = core_attention(runtime, tables, shape, q, k, v, "layer 0");
#pragma once

#include <optional>
#include <span>

#include "attend/attention_call.h"
#include "plan/plan.h"

namespace distca {

/// Validates the plan, compares its digest over all ranks and makes this rank's tables; every rank calls it.
/// Throws Error that names both digests where two ranks' plans differ. With the shape of the layers to come,
/// those of the kernel are among the tables, and no layer makes them.
BatchTables prepare(AttentionRuntime& runtime, const Plan& plan,
                    const std::optional<AttentionShape>& shape = std::nullopt);

/// Throws Error naming the first rank whose digests differ from this rank's, and both digests. A collective.
void check_digests(Fabric& fabric, std::span<const uint64_t> digests);

/// The steps of a call. Each takes the token of the step before it and returns its own; a token carries no
/// data, only the edge of the autograd graph. q, k, v and O as in AttentionCall.
at::Tensor dispatch_begin(const std::shared_ptr<AttentionCall>& call, const at::Tensor& q,
                          const at::Tensor& k, const at::Tensor& v);
at::Tensor dispatch_end(const std::shared_ptr<AttentionCall>& call, const at::Tensor& token);
at::Tensor attend(const std::shared_ptr<AttentionCall>& call, const at::Tensor& token);
at::Tensor collect_begin(const std::shared_ptr<AttentionCall>& call, const at::Tensor& token);
at::Tensor collect_end(const std::shared_ptr<AttentionCall>& call, const at::Tensor& token);

/// All five in a row: the exact output of per-document causal attention, (home_rows, heads, head_dim). Every
/// rank calls it.
at::Tensor core_attention(AttentionRuntime& runtime, const BatchTables& tables, const AttentionShape& shape,
                          const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const std::string& name);

}  // namespace distca
