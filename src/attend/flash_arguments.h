// What a variable-length flash-attention kernel is called with for a batch of CA-tasks. Such a kernel takes
// one mask for all sequences of a call: bottom-right causal (a sequence's last query sees its last key) or
// none, and a window that counts from that alignment. Tasks are cut so that each part is one of these, parts
// of one kind become one call, and rows that see no key go into none. Pure index arithmetic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernel/attention.h"

namespace distca {

/// One call. Sequence s has the packed queries [cu_seqlens_q[s], cu_seqlens_q[s + 1]) and the packed keys
/// likewise; packed row i is row q_rows[i] of Q, k_rows[i] of K and V, o_rows[i] of O and LSE.
struct FlashCall {
  bool causal = false;
  int64_t window_left = -1;  // −1: none. Query i of n, key j of m: j >= i + m − n − window_left
  std::vector<int32_t> cu_seqlens_q = {0}, cu_seqlens_k = {0};
  int64_t max_q = 0, max_k = 0;  // longest sequence
  std::vector<int64_t> q_rows, k_rows, o_rows;
};

struct FlashArguments {
  std::vector<FlashCall> calls;
  std::vector<int64_t> empty_o_rows;  // see no key: O 0, LSE −inf
};

/// Full parts that read the same keys become one sequence, so that their keys are packed once. Throws Error
/// when a call would have more rows than a 32-bit cu_seqlens can count.
FlashArguments make_flash_arguments(std::span<const KernelTask> tasks, int64_t window_left);

/// True when the rows are consecutive, so that a view does instead of a copy.
bool consecutive(std::span<const int64_t> rows);

}  // namespace distca
