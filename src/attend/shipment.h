// Rows of several tensors under way at once, as one exchange: from their homes to servers, or from servers
// home. Counts what it sends, by kind.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attend/buffer_pool.h"
#include "attend/rank_tables.h"
#include "comm/fabric.h"

namespace distca {

/// What one rank sent, computed and waited for. Seconds of pack, attend and merge are thread CPU time; waits
/// go by the fabric's clock.
struct AttentionStats {
  struct Sent {
    std::string kind;  // "forward/q", "backward/dk", …
    int64_t bytes = 0;
  };
  std::vector<Sent> sent;  // to other ranks, in the order in which kinds first appeared
  double pack_s = 0;       // gathering rows to send and ordering rows that arrived
  double attend_s = 0;     // in the kernel
  double merge_s = 0;      // partial outputs, sums of gradients
  double wait_s = 0;       // exposed: nothing else was done meanwhile

  void count(const std::string& kind, int64_t bytes);
  int64_t bytes(const std::string& kind) const;
  int64_t total_bytes() const;
};

class Shipment {
 public:
  Shipment(const RankTables& tables, BufferPool& pool, AttentionStats& stats);

  /// Home rows of `x` (home_rows, …) to their servers. `x` is contiguous.
  void to_servers(const RowTable& table, const at::Tensor& x, const std::string& kind);
  /// Server rows of `x` (server_rows, …) to their homes. Leaves `spare` more rows at the end of what arrives.
  void to_homes(const RowTable& table, const at::Tensor& x, const std::string& kind, int64_t spare = 0);

  void start(Fabric& fabric, const std::string& name);
  /// Waits, and returns one tensor for each that was added: rows for servers in server order, rows for homes
  /// by server as RowTable::home_index lists them.
  std::vector<at::Tensor> finish();

 private:
  struct Item {
    at::Tensor out, in;
    const at::Tensor* arrange = nullptr;  // defined for rows on their way to servers
  };

  const RankTables& tables_;
  BufferPool& pool_;
  AttentionStats& stats_;
  std::vector<Item> items_;
  std::vector<ExchangePart> parts_;
  Fabric* fabric_ = nullptr;
  std::unique_ptr<Pending> pending_;
};

}  // namespace distca
