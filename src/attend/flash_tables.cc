#include "attend/flash_tables.h"

#include <ATen/ops/tensor.h>

#include "base/check.h"

namespace distca {

std::shared_ptr<const KernelTables> FlashTables::mapped(const TensorMap& map) const {
  auto out = std::make_shared<FlashTables>(*this);
  for (FlashCallTables& call : out->calls) {
    call.cu_seqlens_q = map(call.cu_seqlens_q);
    call.cu_seqlens_k = map(call.cu_seqlens_k);
    call.q = call.q.mapped(map);
    call.k = call.k.mapped(map);
    call.o = call.o_as_q ? call.q : call.o.mapped(map);
  }
  out->empty_o = empty_o.mapped(map);
  return out;
}

void FlashTables::check(const FirstRows& given, int64_t window) const {
  DISTCA_CHECK(given.q == first.q && given.kv == first.kv && given.o == first.o && window == window_left,
               "tables of flash attention for {}, {} and {} rows in the first tensors and a window of {} are "
               "used with {}, {}, {} and {}",
               first.q, first.kv, first.o, window_left, given.q, given.kv, given.o, window);
}

std::shared_ptr<const FlashTables> make_flash_tables(std::span<const KernelTask> tasks, int64_t window_left,
                                                     const FirstRows& first) {
  const FlashArguments arguments = make_flash_arguments(tasks, window_left);
  auto out = std::make_shared<FlashTables>();
  out->first = first;
  out->window_left = window_left;
  for (const FlashCall& call : arguments.calls) {
    FlashCallTables tables;
    tables.causal = call.causal;
    tables.window_left = call.window_left;
    tables.max_q = call.max_q, tables.max_k = call.max_k;
    tables.cu_seqlens_q = at::tensor(call.cu_seqlens_q, at::kInt);
    tables.cu_seqlens_k = at::tensor(call.cu_seqlens_k, at::kInt);
    tables.q = make_packed_rows(call.q_rows, first.q);
    tables.k = make_packed_rows(call.k_rows, first.kv);
    tables.o_as_q = call.o_rows == call.q_rows && first.o == first.q;
    tables.o = tables.o_as_q ? tables.q : make_packed_rows(call.o_rows, first.o);
    out->calls.push_back(std::move(tables));
  }
  out->empty_o = make_packed_rows(arguments.empty_o_rows, first.o);
  return out;
}

}  // namespace distca
