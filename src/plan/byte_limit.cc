#include "plan/byte_limit.h"

#include <algorithm>

namespace distca {
namespace {

/// A flow shrinks by no more and no less than these factors at a time. Bytes go with the root of pairs.
constexpr double kLeastFactor = 0.3, kMostFactor = 0.85;

class Limiter {
 public:
  explicit Limiter(Draft& draft) : draft_(draft), limit_(draft.options().byte_limit) {}

  void run() {
    const size_t steps = 32 * draft_.servers().size() + 64;
    for (size_t step = 0; step < steps; ++step) {
      const int32_t server = busiest();
      if (draft_.busy(server) <= limit_ || !relieve(server)) break;
    }
    for (int32_t i = 0; i < static_cast<int32_t>(draft_.servers().size()); ++i) {
      if (draft_.server(i).donor >= 0 && draft_.excess(i, 0) > 0) give_elsewhere(i, draft_.excess(i, 0));
    }
  }

 private:
  int32_t busiest() const {
    int32_t best = 0;
    for (int32_t i = 1; i < static_cast<int32_t>(draft_.servers().size()); ++i) {
      if (draft_.busy(i) > draft_.busy(best)) best = i;
    }
    return best;
  }

  /// Takes from the largest of the flows that a server gives, or of those that it gets.
  bool relieve(int32_t server) {
    const double ratio = static_cast<double>(limit_) / static_cast<double>(draft_.busy(server));
    const double factor = std::clamp(ratio * ratio, kLeastFactor, kMostFactor);
    if (draft_.server(server).donor >= 0) {
      Donor& donor = draft_.donor(draft_.server(server).donor);
      if (!donor.flows.empty()) return shrink(donor, largest(donor), factor) > 0;
    }
    int32_t giver = -1;
    size_t flow = 0;
    int64_t most = 0;
    for (const int32_t from : draft_.server(server).from) {
      const std::vector<Flow>& flows = draft_.donor(from).flows;
      for (size_t i = 0; i < flows.size(); ++i) {
        if (flows[i].to != server || flows[i].pairs <= most) continue;
        giver = from;
        flow = i;
        most = flows[i].pairs;
      }
    }
    if (giver < 0) return false;
    const int32_t rank = draft_.donor(giver).rank;
    if (shrink(draft_.donor(giver), flow, factor) == 0) return false;
    give_elsewhere(rank, draft_.excess(rank, 0));
    return true;
  }

  static size_t largest(const Donor& donor) {
    const auto most = std::max_element(donor.flows.begin(), donor.flows.end(),
                                       [](const Flow& a, const Flow& b) { return a.pairs < b.pairs; });
    return static_cast<size_t>(most - donor.flows.begin());
  }

  int64_t shrink(Donor& donor, size_t flow, double factor) {
    draft_.withdraw(donor);
    const int64_t before = donor.flows[flow].pairs;
    const auto after = static_cast<int64_t>(static_cast<double>(before) * factor);
    donor.flows[flow].pairs = after;
    if (after < kTileRows * kTileRows) donor.flows.erase(donor.flows.begin() + static_cast<int64_t>(flow));
    draft_.carve(donor, donor.carving);
    draft_.apply(donor);
    return before;
  }

  /// To the recipient with the fewest bytes that has room; taken back if that breaks the limit.
  void give_elsewhere(int32_t rank, int64_t load) {
    int32_t to = -1;
    for (int32_t i = 0; i < static_cast<int32_t>(draft_.servers().size()); ++i) {
      if (i == rank || draft_.server(i).donor >= 0 || draft_.room(i, draft_.margin()) == 0) continue;
      if (to < 0 || draft_.busy(i) < draft_.busy(to)) to = i;
    }
    load = to < 0 ? 0 : std::min(load, draft_.room(to, draft_.margin()));
    if (load <= 0 || draft_.busy(rank) >= limit_) return;
    Donor& donor = draft_.donor_of_rank(rank);
    const std::vector<Flow> before = donor.flows;
    draft_.withdraw(donor);
    const int64_t pairs = draft_.pairs_of_load(rank, load);
    const auto known =
        std::find_if(donor.flows.begin(), donor.flows.end(), [&](const Flow& f) { return f.to == to; });
    if (known == donor.flows.end()) {
      donor.flows.push_back({to, pairs});
    } else {
      known->pairs += pairs;
    }
    draft_.carve(donor, donor.carving);
    draft_.apply(donor);
    if (draft_.busy(rank) <= limit_ && draft_.busy(to) <= limit_) return;
    draft_.withdraw(donor);
    donor.flows = before;
    draft_.carve(donor, donor.carving);
    draft_.apply(donor);
  }

  Draft& draft_;
  int64_t limit_;
};

}  // namespace

void keep_byte_limit(Draft& draft) {
  Limiter(draft).run();
}

}  // namespace distca
