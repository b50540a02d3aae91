// Rows of several tensors under way at once, as one exchange: from their homes to servers, or from servers
// home. Counts what it sends, by kind, and records when it packed, waited and was under way.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "attend/buffer_pool.h"
#include "attend/rank_tables.h"
#include "base/span_log.h"
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

/// Exchanges that move one byte a peer, to tell how long steps would take if transfers took no time: rows are
/// packed and put in order as usual, and what is computed on are the rows that came when rows were last sent.
/// Results mean nothing.
struct SignalRows {
  bool sends_rows = true;                  // rows are sent, and remembered
  std::map<std::string, at::Tensor> last;  // by kind

  /// `rows` like those that came last of this kind; zeros where no such came.
  at::Tensor take(const std::string& kind, const at::Tensor& x, int64_t rows);
  void remember(const std::string& kind, const at::Tensor& rows);
};

class Shipment {
 public:
  /// `spans` and `signal` may be null.
  Shipment(BufferPool& pool, AttentionStats& stats, SpanLog* spans = nullptr, SignalRows* signal = nullptr);

  /// Home rows of `x` (home_rows, …) to their servers. `x` is contiguous, and stays as it is until arrive().
  void to_servers(const RowTable& table, const at::Tensor& x, const std::string& kind);
  /// Results of the rest of a server's rows, `x` (at least rest_rows, …), to their homes. `x` is contiguous,
  /// and stays as it is until leave().
  void to_homes(const RowTable& table, const at::Tensor& x, const std::string& kind);

  void start(Fabric& fabric, const char* what, const std::string& name);
  /// Whether arrive() would return at once.
  bool arrived() { return pending_->arrived(); }
  /// Waits for what comes, and returns one tensor for each that was added: on a server the rest of its rows,
  /// which arrived or are copies; at home the rows from other servers as they were sent, and one more that
  /// isn't initialised, where RowTable::returned has its empty part.
  std::vector<at::Tensor> arrive();
  /// After arrive(): waits until all that was sent has left.
  void leave();
  /// arrive(), then leave().
  std::vector<at::Tensor> finish();

 private:
  struct Item {
    at::Tensor out, in;
    at::Tensor home;                  // of rows on their way to servers
    const RowTable* table = nullptr;  // of these
    std::string kind;
  };

  at::Tensor take_in(const std::string& kind, const at::Tensor& x, int64_t rows);
  void add(Item item, int64_t sent_bytes, std::vector<PeerBytes> sends, std::vector<PeerBytes> receives);
  bool sends_rows() const { return signal_ == nullptr || signal_->sends_rows; }
  void signal_instead(int32_t ranks);
  /// Counts a wait, and records it. Returns what `end` says once it is over, where spans are on.
  template <typename Wait, typename End>
  PendingEnd wait(const Wait& wait, const End& end);

  BufferPool& pool_;
  AttentionStats& stats_;
  std::vector<Item> items_;
  std::vector<ExchangePart> parts_;
  SpanLog* spans_;
  SignalRows* signal_;
  std::vector<char> signals_;  // from each rank
  WorkSpan span_;              // under way
  Fabric* fabric_ = nullptr;
  std::unique_ptr<Pending> pending_;
};

}  // namespace distca
