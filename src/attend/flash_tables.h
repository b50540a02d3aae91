// The arguments of flash attention as tensors: flash_arguments.h says what a batch of tasks is called with,
// and here that is what a device reads, made once and used by forward and backward of every layer.
#pragma once

#include <memory>
#include <vector>

#include "attend/flash_arguments.h"
#include "attend/kernel_tables.h"
#include "attend/packed_rows.h"

namespace distca {

/// One call, as FlashCall has it.
struct FlashCallTables {
  bool causal = false;
  int64_t window_left = -1;
  int64_t max_q = 0, max_k = 0;
  at::Tensor cu_seqlens_q, cu_seqlens_k;  // int32, one more than sequences
  PackedRows q, k, o;
  bool o_as_q = false;  // the same rows, in the same tensors
};

class FlashTables : public KernelTables {
 public:
  std::shared_ptr<const KernelTables> mapped(const TensorMap& map) const override;

  /// Throws Error where tables for other tensors or another window were handed over.
  void check(const FirstRows& given, int64_t window) const;

  std::vector<FlashCallTables> calls;
  PackedRows empty_o;  // rows that see no key
  FirstRows first;
  int64_t window_left = -1;  // of the model
};

/// On the CPU.
std::shared_ptr<const FlashTables> make_flash_tables(std::span<const KernelTask> tasks, int64_t window_left,
                                                     const FirstRows& first);

}  // namespace distca
