// Who keeps the others waiting, found from what all ranks say of how far they have come.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace distca {

/// How far a rank has come on one communicator, in operations since it was made.
struct LinkPosition {
  int64_t begun = 0, finished = 0;
};

/// What a rank says of itself.
struct RankPosition {
  bool ended = false;                         // it has let go of all its fabrics
  std::map<std::string, LinkPosition> links;  // by the communicator's path
  std::string last;                           // the operation that it began last; "" for none
  double last_s = 0;                          // seconds since then
  std::string waits_in;                       // the oldest operation that isn't over; "" for none
  std::vector<int32_t> waits_for;             // whom that one needs
  std::string error;                          // what NCCL reports; "" for nothing
};

std::string encode(const RankPosition& position);
RankPosition decode_position(const std::string& bytes);

/// An operation that takes too long.
struct LateOperation {
  std::string path;
  int64_t number = 0;  // among those of the path, from 1
  std::vector<int32_t> peers;
};

/// Those of the peers who haven't begun the operation or say nothing; where all have begun it, those who have
/// an error; where nobody has, those who haven't finished.
std::vector<int32_t> late_peers(const LateOperation& operation,
                                const std::map<int32_t, RankPosition>& answers);

/// What is known of the first of `late`: ", which last began step 3 31.0 s ago", ", which doesn't answer",
/// ", of which rank 1 waits for rank 2 in gradients", and so on along the ranks that wait.
std::string lateness_text(const LateOperation& operation, const std::vector<int32_t>& late,
                          const std::map<int32_t, RankPosition>& answers);

}  // namespace distca
