// What others do about uneven attention, behind the same interface, so that it can be compared: context
// parallelism per document and per packed sequence, and packing by workload (WLB-LLM, arXiv 2503.17924).
// Ranks form groups of `cp` consecutive ones that share their documents; each rank computes the queries it is
// home to and gathers the keys of its group.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "plan/layout.h"
#include "plan/row_bytes.h"
#include "plan/traffic.h"

namespace distca {

/// Every document of a group is cut into 2·cp slices of equal length, the last ones shorter; rank i of the
/// group gets slices i and 2·cp - 1 - i. A document belongs to the group in which it begins. Throws
/// InputError when the ranks aren't a multiple of cp.
Layout context_parallel_layout(const Layout& packed, int32_t cp);

/// The same for all rows of a group end to end, whatever documents they belong to.
Layout sequence_parallel_layout(const Layout& packed, int32_t cp);

/// WLB-LLM's packing into groups of variable length, then context parallelism per document inside each. All
/// documents of the layout are packed: none is left for a later step.
Layout wlb_layout(const Layout& packed, int32_t cp);

/// The same for groups that are decided: `groups` has the documents of each.
Layout grouped_layout(const std::vector<int64_t>& doc_lengths,
                      const std::vector<std::vector<int32_t>>& groups, int32_t cp);

/// Packs the documents of one step after the other into `groups` of about equal workload. Outliers wait in
/// queues, one a length class, until there is one for every group; what exceeds the memory cap waits for the
/// next step.
class WlbPacker {
 public:
  struct Document {
    int64_t id = 0, length = 0;
  };

  /// `tokens` is what a group holds without variable lengths; `cap` times that is the most it may hold.
  WlbPacker(int32_t groups, int64_t tokens, double cap = 1.25);

  /// Documents of this step's groups. With `flush` none stays behind, even beyond the cap.
  std::vector<std::vector<Document>> pack(std::vector<Document> arrived, bool flush);

  int64_t waiting() const;

 private:
  int64_t outlier_class(int64_t length) const;
  void release_outliers(bool flush, std::vector<Document>& ready);

  int32_t groups_;
  int64_t tokens_, cap_;
  std::vector<std::deque<Document>> outliers_;  // by length class
  std::vector<Document> held_back_;
};

/// Workload of a document of `length` tokens, in tokens: attention costs as much as all else at 64K tokens.
double wlb_workload(int64_t length);

/// What gathering all keys and values of a group costs: each rank receives those it isn't home to.
Traffic all_gather_traffic(const Layout& layout, int32_t cp, const RowBytes& bytes);

}  // namespace distca
