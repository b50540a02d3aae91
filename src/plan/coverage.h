// An exact check of what a list of tasks covers, apart from everything that makes or validates plans: it
// includes nothing of theirs and counts with formulas of its own. Benchmarks and tests hold every plan
// against it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace distca {
namespace coverage {

/// [doc, q_begin, q_end, kv_begin, kv_end, server], as in a plan's dump.
using Row = std::array<int64_t, 6>;

/// Pairs (q, k), k <= q, of one row: an arithmetic series where the diagonal cuts it, a rectangle elsewhere.
inline int64_t count_pairs(const Row& row) {
  const auto [doc, q_begin, q_end, k_begin, k_end, server] = row;
  int64_t count = 0;
  // Queries that see all keys, then those that see a part.
  const int64_t all_from = std::max(q_begin, k_end - 1);
  if (all_from < q_end) count += (q_end - all_from) * (k_end - k_begin);
  const int64_t some_from = std::max(q_begin, k_begin), some_to = std::min(q_end, all_from);
  if (some_from < some_to) {
    const int64_t first = some_from - k_begin + 1, last = some_to - k_begin;
    count += (first + last) * (last - first + 1) / 2;
  }
  return count;
}

/// Empty when each causal pair of each document is in exactly one row and every row has a server in [0,
/// servers); else what is wrong. Pairs are covered once each exactly if no two rows share one and their
/// numbers add up.
inline std::string fault(const std::vector<int64_t>& doc_lengths, std::vector<Row> rows, int64_t servers) {
  std::sort(rows.begin(), rows.end());
  std::vector<int64_t> covered(doc_lengths.size(), 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto [doc, q_begin, q_end, k_begin, k_end, server] = rows[i];
    const std::string name = "row " + std::to_string(i) + " of document " + std::to_string(doc);
    if (doc < 0 || doc >= static_cast<int64_t>(doc_lengths.size())) return name + " is of no document";
    const int64_t length = doc_lengths[static_cast<size_t>(doc)];
    if (q_begin < 0 || q_begin >= q_end || q_end > length) return name + " has queries outside";
    if (k_begin < 0 || k_begin >= k_end || k_end > length) return name + " has keys outside";
    if (k_end != q_end && k_end > q_begin + 1) return name + " is neither diagonal nor full";
    if (server < 0 || server >= servers) return name + " has no server";
    covered[static_cast<size_t>(doc)] += count_pairs(rows[i]);
    for (size_t j = i + 1; j < rows.size() && rows[j][0] == doc && rows[j][1] < q_end; ++j) {
      const int64_t last_query = std::min(q_end, rows[j][2]) - 1;
      const int64_t first_key = std::max(k_begin, rows[j][3]), end_key = std::min(k_end, rows[j][4]);
      if (first_key < end_key && first_key <= last_query)
        return name + " shares pairs with row " + std::to_string(j);
    }
  }
  for (size_t doc = 0; doc < doc_lengths.size(); ++doc) {
    const int64_t length = doc_lengths[doc];
    const int64_t all = length % 2 == 0 ? length / 2 * (length + 1) : (length + 1) / 2 * length;
    if (covered[doc] != all) {
      return "document " + std::to_string(doc) + " has " + std::to_string(all) + " pairs, " +
             std::to_string(covered[doc]) + " are covered";
    }
  }
  return "";
}

/// Of anything with the fields of a plan.
template <typename Plan>
std::string fault_of(const Plan& plan) {
  std::vector<Row> rows;
  for (const auto& task : plan.tasks) {
    rows.push_back({task.doc, task.q.begin, task.q.end, task.kv.begin, task.kv.end, task.server});
  }
  return fault(plan.layout.doc_lengths, std::move(rows), plan.servers);
}

}  // namespace coverage
}  // namespace distca
