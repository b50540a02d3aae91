// What a kernel works out from a task list before it is called: once per plan on the planner's thread, for
// forward and backward of every layer, so that a call itself leaves nothing to the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernel/attention.h"

namespace distca {

using TensorMap = std::function<at::Tensor(const at::Tensor&)>;

class KernelTables {
 public:
  virtual ~KernelTables() = default;
  /// The same tables, each tensor being what `map` makes of it: the one way in which they get to a device.
  virtual std::shared_ptr<const KernelTables> mapped(const TensorMap& map) const = 0;
};

/// How many rows stand in the first tensor of a call's pairs: those of queries, of keys and values, of
/// outputs.
struct FirstRows {
  int64_t q = 0, kv = 0, o = 0;
};

/// The CA-tasks of a call. Without tables the kernel makes its own, and the host waits for their way to the
/// device.
struct KernelTasks {
  std::span<const KernelTask> list;
  const KernelTables* tables = nullptr;  // AttentionKernel::prepare() of this list, on the call's device

  KernelTasks() = default;
  KernelTasks(std::span<const KernelTask> list,
              const KernelTables* tables = nullptr)  // NOLINT: a list is one
      : list(list), tables(tables) {}
  KernelTasks(const std::vector<KernelTask>& list, const KernelTables* tables = nullptr)  // NOLINT: as above
      : list(list), tables(tables) {}
};

}  // namespace distca
