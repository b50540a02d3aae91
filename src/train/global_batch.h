// The global batch: which documents a step takes and in which nano-batch each stands. It is a function of the
// data set and the inputs below alone, never of the number of ranks, so that runs on different ranks can be
// compared number by number and a run can go on with other ranks than it began with.
//
// Documents come in the epoch's shuffled order through a window. A step takes the earliest document in the
// window that still fits in one of its nano-batches (the one with most room left) until none does; documents
// passed over come first in the next step. What is left of a nano-batch is padding.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/task.h"

namespace distca {

/// A data set as the batch sees it.
struct TokenSource {
  std::string name;       // as errors call it
  int64_t documents = 0;  // numbered from 0
  std::function<int64_t(int64_t doc)> length;
  /// Writes tokens `tokens` of document `doc` to `out`.
  std::function<void(int64_t doc, Span tokens, int64_t* out)> read;
};

/// All that decides what a step holds, besides the data set and the step.
struct BatchInputs {
  int64_t tokens_per_batch = 0, micro_batches = 1, nano_batches = 2;
  int64_t context = 0;  // longest document; at most rows()
  int64_t window = 256;
  bool split_documents = false;
  int64_t seed = 0;

  /// Rows of one nano-batch over all ranks.
  int64_t rows() const { return tokens_per_batch / (micro_batches * nano_batches); }
};

/// A document of a step: a whole document of the data set, or a part of one that was split.
struct Piece {
  int64_t doc = 0;  // of the data set
  Span tokens;      // never empty

  friend bool operator==(const Piece&, const Piece&) = default;
};

struct NanoBatch {
  std::vector<Piece> documents;  // in the order in which they lie end to end
  /// Packed by workload: how many documents each group of ranks has. Else empty.
  std::vector<int64_t> groups;

  std::vector<int64_t> lengths() const;
  int64_t tokens() const;
  int64_t targets() const;  // every token of a document but its first is predicted
};

struct GlobalBatch {
  int64_t step = 0;
  int64_t rows = 0;                     // of each nano-batch
  std::vector<NanoBatch> nano_batches;  // micro_batches · nano_batches of them, micro-batch after micro-batch

  int64_t tokens() const;
  int64_t targets() const;
  int64_t padding() const;  // rows that hold no token
};

/// Where a stream of batches stands: all a run needs to go on from there.
struct StreamState {
  int64_t step = 0;             // of the next batch
  int64_t epoch = 0, next = 0;  // place in the epoch's order from which documents are drawn next
  int64_t next_token = 0;       // and where in that document, when part of it is already drawn
  std::vector<Piece> passed_over;
  std::vector<Piece> waiting;  // drawn, and delayed by packing by workload

  friend bool operator==(const StreamState&, const StreamState&) = default;
};

/// Documents longer than `context` and how many they become when split; the first of them, or −1.
struct LongDocuments {
  int64_t count = 0, parts = 0, first = -1;
};
LongDocuments find_long_documents(const TokenSource& source, int64_t context);

class BatchStream {
 public:
  /// Throws InputError for inputs that can't be right, for a data set without tokens, and for a document
  /// longer than `context` when documents aren't split.
  BatchStream(TokenSource source, BatchInputs inputs);

  /// The next step's batch.
  GlobalBatch next();
  /// From now on every step is `batch`, whose documents are those of the data set.
  void repeat(GlobalBatch batch) { repeated_ = std::move(batch); }
  /// From now on the documents of a step are packed by workload (WLB-LLM, plan/baselines.h) into so many
  /// groups of ranks a nano-batch: outliers wait for others of their size, and what would exceed 1.25 times a
  /// group's rows waits for the next step. Batches then depend on the number of groups.
  void pack_by_workload(int32_t groups) { workload_groups_ = groups; }

  const StreamState& state() const { return state_; }
  const TokenSource& source() const { return source_; }

  /// The state together with what it depends on, as JSON text for a checkpoint.
  std::string dump_state() const { return dump_state(state_); }
  std::string dump_state(const StreamState& state) const;
  /// Goes to the state that such a text holds. Throws InputError that names `origin` when the text is
  /// malformed, or was written for another data set or other inputs.
  void restore_state(std::string_view text, const std::string& origin);

 private:
  Piece draw();
  GlobalBatch next_in_order();
  void pack(GlobalBatch& batch);

  TokenSource source_;
  BatchInputs inputs_;
  uint64_t lengths_digest_ = 0;
  StreamState state_;
  std::optional<GlobalBatch> repeated_;
  int32_t workload_groups_ = 0;
};

}  // namespace distca
