#include "plan/search.h"

#include <algorithm>
#include <cmath>

#include "plan/random.h"
#include "plan/transport.h"

namespace distca {
namespace {

constexpr uint64_t kSeed = 20251018;
/// Weight of (busy - bound)² / bound beside bytes: the busiest servers count most.
constexpr double kBusyWeight = 4;
/// From so many times the bound above it on, the excess counts as a line does: sums stay within 64 bits.
constexpr double kMostTimes = 64;
/// Weight of bytes above the limit, if there is one.
constexpr int64_t kLimitWeight = 16;
/// Cost by which a change may be worse at first, as a share of a donor's mean bytes; it falls to 0.
constexpr double kHeat = 0.02;
/// Share by which all bytes may grow to relieve the busiest servers.
constexpr double kMoreBytes = 0.01;

class Search {
 public:
  Search(Draft& draft, SearchFor goal)
      : draft_(draft),
        random_(kSeed),
        busy_weight_(goal == SearchFor::kBusiest ? kBusyWeight : 0),
        touched_(draft.servers().size(), false) {
    busy_bound_ = std::max(bound_of_busiest_donor(), draft.busiest_at_home());
    if (draft.options().byte_limit > 0) busy_bound_ = std::min(busy_bound_, draft.options().byte_limit);
    unassigned_ = draft.margin();
    for (int32_t i = 0; i < static_cast<int32_t>(draft.servers().size()); ++i) {
      if (draft.excess(i, draft.margin()) < 0 && draft.server(i).donor < 0) recipients_.push_back(i);
    }
  }

  SearchCost run(int64_t moves) {
    SearchCost result{cost_now(), 0};
    result.after = result.before;
    const std::vector<Donor>& donors = draft_.donors();
    if (donors.empty() || recipients_.empty() || recipients_.size() + donors.size() < 3) return result;
    std::vector<std::vector<Flow>> flows_before;
    for (const Donor& donor : donors) flows_before.push_back(donor.flows);
    const double heat = kHeat * static_cast<double>(total_bytes()) / static_cast<double>(donors.size());
    bytes_ = total_bytes();
    most_bytes_ = bytes_ + static_cast<int64_t>(kMoreBytes * static_cast<double>(bytes_));
    int64_t cost = 0, best = 0;
    for (int64_t move = 0; move < moves; ++move) {
      const double left = static_cast<double>(moves - move) / static_cast<double>(moves);
      int64_t change = 0;
      if (!attempt(static_cast<int64_t>(heat * left * random_.unit()), change)) continue;
      cost += change;
      if (cost >= best) continue;
      best = cost;
      journal_.clear();
    }
    roll_back();
    result.after = cost_now();
    // Keys may come from homes outside a move's group, which its change in cost leaves out.
    if (result.after > result.before) {
      restore_flows(flows_before);
      result.after = cost_now();
    }
    return result;
  }

 private:
  struct Change {
    int32_t donor;
    std::vector<Flow> flows;
    Carving carving;
  };

  int64_t total_bytes() const {
    int64_t sum = 0;
    for (const Donor& donor : draft_.donors()) sum += donor.carving.bytes;
    return sum;
  }

  /// What the donor that gives most must send at the cheapest: of 2 · sqrt((Q + O) · KV · F) bytes, 3/4 go
  /// out.
  int64_t bound_of_busiest_donor() const {
    const RowBytes& bytes = draft_.options().bytes;
    double most = 0;
    for (const Donor& donor : draft_.donors()) {
      double sum = 0;
      for (const Flow& flow : donor.flows) sum += std::sqrt(static_cast<double>(flow.pairs));
      most = std::max(most, sum);
    }
    const double product = static_cast<double>(bytes.q + bytes.o) * static_cast<double>(bytes.kv());
    return 1 + static_cast<int64_t>(1.5 * std::sqrt(product) * most);
  }

  int64_t penalty(int32_t server) const {
    const auto above = static_cast<double>(draft_.busy(server) - busy_bound_);
    if (above <= 0) return 0;
    const auto bound = static_cast<double>(busy_bound_);
    const double excess = above > kMostTimes * bound ? above * kMostTimes : above * above / bound;
    const auto busy = static_cast<int64_t>(excess * busy_weight_);
    const int64_t limit = draft_.options().byte_limit;
    return busy + (limit == 0 ? 0 : kLimitWeight * std::max<int64_t>(0, draft_.busy(server) - limit));
  }

  int64_t penalty_of_group() const {
    int64_t sum = 0;
    for (const int32_t server : group_) sum += penalty(server);
    return sum;
  }

  int64_t cost_now() const {
    int64_t sum = total_bytes();
    for (int32_t i = 0; i < static_cast<int32_t>(draft_.servers().size()); ++i) sum += penalty(i);
    return sum;
  }

  void touch(int32_t server) {
    if (touched_[static_cast<size_t>(server)]) return;
    touched_[static_cast<size_t>(server)] = true;
    group_.push_back(server);
  }

  /// A donor, the recipients it gives to, some that have room, and some of the donors that give to those too.
  void choose_group() {
    for (const int32_t server : group_) touched_[static_cast<size_t>(server)] = false;
    group_.clear();
    givers_.clear();
    const auto donors = static_cast<int64_t>(draft_.donors().size());
    add_giver(static_cast<int32_t>(random_.between(0, donors - 1)));
    const int64_t wanted = random_.between(1, 3);
    for (int64_t i = random_.between(0, 2); i > 0; --i) touch(pick(recipients_));
    const std::vector<int32_t>& kin = draft_.carver().held_keys().kin_of(draft_.donor(givers_[0]).rank);
    if (!kin.empty()) touch(pick(kin));
    for (size_t i = 0; i < group_.size() && static_cast<int64_t>(givers_.size()) < wanted; ++i) {
      const std::vector<int32_t>& from = draft_.server(group_[i]).from;
      if (!from.empty()) add_giver(pick(from));
    }
    if (givers_.size() == 1 && donors > 1) add_giver(static_cast<int32_t>(random_.between(0, donors - 1)));
  }

  void add_giver(int32_t donor) {
    if (std::find(givers_.begin(), givers_.end(), donor) != givers_.end()) return;
    givers_.push_back(donor);
    touch(draft_.donor(donor).rank);
    for (const Flow& flow : draft_.donor(donor).flows) touch(flow.to);
  }

  int32_t pick(const std::vector<int32_t>& list) { return list[random_.below(list.size())]; }

  /// Changes the draft if that costs at most `threshold` more, and returns whether it did.
  bool attempt(int64_t threshold, int64_t& change) {
    choose_group();
    // Where room is scarce only plans without spare room fit, elsewhere spare room makes rounding harmless.
    spare_ = draft_.margin() / 2 * random_.between(0, 2);
    for (size_t i = givers_.size(); i > 1; --i) {
      std::swap(givers_[i - 1],
                givers_[static_cast<size_t>(random_.between(0, static_cast<int64_t>(i) - 1))]);
    }
    const int64_t bytes_before = bytes_of_givers(), before = penalty_of_group() + bytes_before;
    withdraw_givers();
    bool fits = true;
    size_t done = 0;
    for (; done < givers_.size() && fits; ++done) fits = assign(draft_.donor(givers_[done]));
    for (const int32_t server : group_) fits = fits && draft_.excess(server, 0) <= 0;
    if (fits) {
      const int64_t more = bytes_of_givers() - bytes_before;
      change = penalty_of_group() + bytes_of_givers() - before;
      if (change <= threshold && change != 0 && bytes_ + more <= most_bytes_) {
        bytes_ += more;
        for (Change& saved : saved_) journal_.push_back(std::move(saved));
        return true;
      }
    }
    for (size_t i = 0; i < givers_.size(); ++i) {
      if (i < done) draft_.withdraw(draft_.donor(givers_[i]));
      restore(draft_.donor(givers_[i]), saved_[i]);
    }
    return false;
  }

  int64_t bytes_of_givers() const {
    int64_t sum = 0;
    for (const int32_t giver : givers_) sum += draft_.donor(giver).carving.bytes;
    return sum;
  }

  /// Takes the givers out of the draft, in random order, and keeps how they were in `saved_`.
  void withdraw_givers() {
    for (size_t i = givers_.size(); i > 1; --i) std::swap(givers_[i - 1], givers_[random_.below(i)]);
    saved_.resize(givers_.size());
    for (size_t i = 0; i < givers_.size(); ++i) {
      Donor& donor = draft_.donor(givers_[i]);
      draft_.withdraw(donor);
      saved_[i].donor = givers_[i];
      std::swap(saved_[i].flows, donor.flows);
      std::swap(saved_[i].carving, donor.carving);
      donor.flows.clear();
      donor.carving.clear();
    }
  }

  void restore(Donor& donor, Change& saved) {
    std::swap(donor.flows, saved.flows);
    std::swap(donor.carving, saved.carving);
    draft_.apply(donor);
  }

  /// Gives the donor's surplus to recipients of the group.
  bool assign(Donor& donor) {
    const int64_t surplus = draft_.excess(donor.rank, spare_);
    if (surplus <= 0) return true;
    rooms_.clear();
    for (const int32_t server : group_) {
      if (draft_.server(server).donor >= 0) continue;
      const int64_t room = draft_.room(server, spare_);
      if (room > 0) rooms_.push_back({room, server});
    }
    const bool done = share_out(surplus, donor);
    draft_.carve(donor, donor.carving);
    draft_.apply(donor);
    return done;
  }

  bool share_out(int64_t surplus, Donor& donor) {
    const int64_t strategy = random_.between(0, 3);
    if (strategy <= 1) {
      flows_.clear();
      Rooms recipients(rooms_);
      const int64_t left = recipients.take(surplus, flows_);
      for (const Room& flow : flows_)
        donor.flows.push_back({flow.server, draft_.pairs_of_load(donor.rank, flow.load)});
      return left <= unassigned_;
    }
    while (surplus > 0 && !rooms_.empty()) {
      size_t at = random_.below(rooms_.size());
      if (strategy == 2) {
        at = static_cast<size_t>(std::max_element(rooms_.begin(), rooms_.end()) - rooms_.begin());
      }
      const int64_t load = std::min(surplus, rooms_[at].load);
      donor.flows.push_back({rooms_[at].server, draft_.pairs_of_load(donor.rank, load)});
      surplus -= load;
      rooms_.erase(rooms_.begin() + static_cast<int64_t>(at));
    }
    return surplus <= unassigned_;
  }

  void restore_flows(std::vector<std::vector<Flow>>& flows) {
    std::vector<Donor>& donors = draft_.donors();
    for (const Donor& donor : donors) draft_.withdraw(donor);
    for (size_t i = 0; i < donors.size(); ++i) {
      donors[i].flows = std::move(flows[i]);
      draft_.carve(donors[i], donors[i].carving);
      draft_.apply(donors[i]);
    }
  }

  void roll_back() {
    for (; !journal_.empty(); journal_.pop_back()) {
      Donor& donor = draft_.donor(journal_.back().donor);
      draft_.withdraw(donor);
      restore(donor, journal_.back());
    }
  }

  Draft& draft_;
  Random random_;
  double busy_weight_;
  std::vector<bool> touched_;
  std::vector<int32_t> recipients_, group_, givers_;
  std::vector<Change> saved_, journal_;
  std::vector<Room> rooms_, flows_;
  int64_t busy_bound_ = 0;
  int64_t bytes_ = 0, most_bytes_ = 0;
  int64_t unassigned_ = 0;  // surplus that may stay where it is until it is seen whether that fits
  int64_t spare_ = 0;
};

}  // namespace

SearchCost search(Draft& draft, int64_t moves, SearchFor goal) {
  return Search(draft, goal).run(moves);
}

}  // namespace distca
