#include "plan/kin.h"

#include <algorithm>
#include <cmath>

namespace distca {
namespace {

class KinFlows {
 public:
  KinFlows(const Draft& draft, int32_t rank)
      : draft_(draft),
        held_(draft.carver().held_keys()),
        rank_(rank),
        row_(static_cast<double>(draft.options().bytes.q + draft.options().bytes.o)),
        key_(static_cast<double>(draft.options().bytes.kv())),
        pairs_per_load_(static_cast<double>(draft.pairs_of_load(rank, kUnit)) / kUnit) {}

  /// The flow that saves most, of no load if none saves anything.
  Room best(int64_t surplus, const Rooms& rooms) const {
    Room best;
    double most = 0;
    for (const int32_t kin : held_.kin_of(rank_)) {
      const int64_t room = std::min(surplus, rooms.room_of(kin));
      if (room == 0) continue;
      for (const Region& region : draft_.carver().regions_of(rank_)) {
        const auto keys = static_cast<double>(std::min(held_.end_at(region.shard, kin), region.bottom));
        if (keys == 0) continue;
        const double rectangle = keys * static_cast<double>(region.rows()) / pairs_per_load_;
        const int64_t load = rectangle < static_cast<double>(room) ? static_cast<int64_t>(rectangle) : room;
        const double gain = root(surplus) - root(surplus - load) - cost(load, keys);
        if (gain <= most) continue;
        most = gain;
        best = {load, kin};
      }
    }
    return best;
  }

 private:
  static constexpr int64_t kUnit = int64_t{1} << 40;

  double pairs(int64_t load) const { return static_cast<double>(load) * pairs_per_load_; }

  double root(int64_t load) const { return 2 * std::sqrt(row_ * key_ * pairs(load)); }

  double cost(int64_t load, double keys) const {
    if (row_ * pairs(load) < key_ * keys * keys) return row_ * pairs(load) / keys;
    return root(load) - key_ * keys;
  }

  const Draft& draft_;
  const HeldKeys& held_;
  int32_t rank_;
  double row_, key_, pairs_per_load_;
};

}  // namespace

int64_t give_to_kin(const Draft& draft, int32_t rank, int64_t surplus, Rooms& rooms,
                    std::vector<Room>& flows) {
  const KinFlows kin(draft, rank);
  while (surplus > 0) {
    const Room flow = kin.best(surplus, rooms);
    if (flow.load == 0) break;
    rooms.take_from(flow.server, flow.load);
    flows.push_back(flow);
    surplus -= flow.load;
  }
  return surplus;
}

}  // namespace distca
