// Flash attention behind the kernel interface: variable length, one call a mask kind, over rows that are
// packed by tables which are made before (flash_tables.h). A call starts work on the device and does nothing
// else.
#pragma once

#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include "attend/attention_kernel.h"
#include "attend/flash_tables.h"

namespace distca {

/// Attention of packed sequences: of a call's q, dout, o and dq (rows, heads, head_dim), k, v, dk and dv
/// (rows, kv_heads, head_dim), and lse (heads, rows).
class PackedAttention {
 public:
  virtual ~PackedAttention() = default;
  /// Throws InputError for a type that it doesn't take.
  virtual void check_type(at::ScalarType type) const = 0;
  /// o and lse.
  virtual std::pair<at::Tensor, at::Tensor> forward(const FlashCallTables& call, double scale,
                                                    const at::Tensor& q, const at::Tensor& k,
                                                    const at::Tensor& v) const = 0;
  /// dq, dk, dv.
  virtual std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const FlashCallTables& call, double scale,
                                                                  const at::Tensor& dout, const at::Tensor& q,
                                                                  const at::Tensor& k, const at::Tensor& v,
                                                                  const at::Tensor& o,
                                                                  const at::Tensor& lse) const = 0;
};

/// "flash" on GPUs, PyTorch's: bfloat16 or float16. head_dim up to 256; one that isn't a multiple of 8 is
/// padded.
std::unique_ptr<AttentionKernel> make_flash_kernel(int threads);

/// The same around another attention of packed sequences, on any device.
std::unique_ptr<AttentionKernel> make_packing_kernel(std::string name,
                                                     std::unique_ptr<PackedAttention> attention);

}  // namespace distca
