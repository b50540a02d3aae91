// A plan is a decision as data: the layout of one nano-batch and the CA-tasks of every server. It can be
// checked, printed, written and read; every rank derives the identical plan from the same inputs, and ranks
// compare its digest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/layout.h"
#include "plan/task.h"

namespace distca {

struct Plan {
  Layout layout;
  int32_t servers = 0;      // ranks that may compute: those with a home first, dedicated servers after them
  std::vector<Task> tasks;  // in execution order: by (server, doc, q.begin, kv.begin)

  /// Throws Error that names the first fault: shards that don't cover each document once or overlap in rows,
  /// a task outside its document or spanning two homes, causal pairs covered twice or not at all, edges that
  /// are neither multiples of 128, edges of shards nor ends of documents, tasks that are neither diagonal nor
  /// full, tasks out of order. Time grows with n log n, not with lengths.
  void validate() const;

  /// 64-bit digest of all of the above. Equal on every compiler and machine.
  uint64_t digest() const;

  /// Brings the tasks into execution order.
  void sort_tasks();
};

/// Throws InputError that names the first difference unless the plan's documents and ranks are those of the
/// layout; the documents may lie elsewhere.
void check_same_documents(const Plan& plan, const Layout& layout);

/// Throws InputError that names the first difference unless the plan was made for this very layout.
void check_made_for(const Plan& plan, const Layout& layout);

/// The dump of the documentation: {"doc_lengths", "servers", "shards", "tasks", "digest"}, and what else
/// makes the plan whole: "ranks", "rows" and "shard_rows".
std::string dump_plan(const Plan& plan);

/// Reads a dump. Throws InputError when it is malformed, when its digest is not that of its contents, or when
/// the plan isn't valid.
Plan load_plan(const std::string& path);
Plan parse_plan(std::string_view text, const std::string& origin);

}  // namespace distca
