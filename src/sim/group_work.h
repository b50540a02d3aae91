// What the policies of context parallelism make of an iteration's documents: the work of each data-parallel
// group, whose ranks wait for each other in every layer.
#pragma once

#include <cstdint>
#include <vector>

namespace distca {

/// Of one layer, forward.
struct GroupWork {
  double tokens = 0;              // of one rank
  std::vector<double> attention;  // row·keys of each rank (sim/step_costs.h)
  double gathered = 0;            // tokens whose K and V a rank gets from the others

  double busiest() const;
};

/// Per-sequence context parallelism: each of `groups` groups takes an equal run of the concatenated
/// documents, and its `degree` ranks take that run's pieces i and 2·degree - 1 - i of 2·degree equal ones. A
/// document that ends of runs cut loses its prefix; one that pieces cut keeps it.
std::vector<GroupWork> cut_by_sequence(const std::vector<int64_t>& documents, int64_t groups, int64_t degree,
                                       double startup_keys);

/// WLB-LLM: documents, longest first, go to the group with the least sum of L + L²/65536; then each document
/// is cut over its group's ranks like a sequence above.
std::vector<GroupWork> cut_by_document(const std::vector<int64_t>& documents, int64_t groups, int64_t degree,
                                       double startup_keys);

/// Row·keys of all documents, uncut.
double whole_attention(const std::vector<int64_t>& documents, double startup_keys);

}  // namespace distca
