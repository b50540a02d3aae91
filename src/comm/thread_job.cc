#include "comm/thread_job.h"

#include <set>
#include <utility>

namespace distca {

namespace {

void check_speeds(const std::vector<double>& speeds, int32_t ranks, bool is_virtual) {
  if (speeds.empty()) return;
  DISTCA_CHECK_INPUT(is_virtual, "ranks have speeds of their own on a virtual clock alone");
  DISTCA_CHECK_INPUT(static_cast<int32_t>(speeds.size()) == ranks, "{} speeds of clocks for {} ranks",
                     speeds.size(), ranks);
  for (const double speed : speeds)
    DISTCA_CHECK_INPUT(speed >= 1e-6 && speed <= 1e6, "a clock's speed of {} is not from 1e-6 to 1e6", speed);
}

}  // namespace

ThreadJob::ThreadJob(int32_t ranks, const FabricOptions& options, const std::vector<double>& speeds)
    : options_(options), sleepers_(ranks), known_(ranks), ended_(ranks), sleeps_(ranks), expired_(ranks) {
  const bool is_virtual = options.link.clock == LinkOptions::Clock::kVirtual;
  check_speeds(speeds, ranks, is_virtual);
  if (is_virtual) clocks_.emplace(ranks, options.link.cores, speeds);
  const LinkModel links(options.link, ranks);  // checks the options
  if (is_virtual || LinkModel::costs_time(options.link)) links_ = links;
}

double ThreadJob::now(int32_t rank) const {
  return clocks_ ? clocks_->now(rank) : wall_seconds();
}

void ThreadJob::enter(int32_t rank) {
  if (!clocks_) return;
  const Lock lock(mutex_);
  clocks_->enter(rank);
}

void ThreadJob::leave(int32_t rank) {
  if (!clocks_) return;
  Lock lock(mutex_);
  if (clocks_->depth(rank) == 1 && !clocks_->ended(rank)) {
    // After a failure nobody's clock matters any more.
    sleepers_[rank].wait(lock, [&] { return clocks_->has_core(rank) || failed_; });
  }
  clocks_->leave(rank);
}

void ThreadJob::end(int32_t rank) {
  const Lock lock(mutex_);
  ended_[rank] = true;
  if (!losses_.empty()) wake_all();  // who agree on who is left needn't wait for it
  if (!clocks_) return;
  clocks_->end(rank);
  give_core(rank);
}

void ThreadJob::give_core(int32_t rank) {
  if (!clocks_) return;
  const int32_t next = clocks_->give_core(rank);
  if (next >= 0) wake(next);
}

std::vector<std::shared_ptr<Transfer>> ThreadJob::post(
    int32_t from, const std::vector<std::pair<int32_t, int64_t>>& messages) {
  const double now = this->now(from);
  std::vector<std::shared_ptr<Transfer>> out;
  for (const auto& [to, bytes] : messages) out.push_back(links_->post(from, to, bytes, now));
  links_->forget(clocks_ ? clocks_->least() : now);
  return out;
}

double ThreadJob::end_of(int32_t rank, const std::vector<const Transfer*>& transfers) {
  double end = 0;
  for (const Transfer* transfer : transfers) {
    links_->decide(*transfer);
    end = std::max(end, transfer->to == rank ? transfer->arrived : transfer->left);
  }
  return end;
}

void ThreadJob::wait_for(Lock& lock, int32_t rank, const std::string& name,
                         const std::vector<const Transfer*>& transfers) {
  const double end = end_of(rank, transfers);
  if (clocks_) return clocks_->raise(rank, end);
  const auto missing = [&] {
    std::set<int32_t> out;
    for (const Transfer* transfer : transfers) {
      if (end_of(rank, {transfer}) > wall_seconds())
        out.insert(transfer->to == rank ? transfer->from : transfer->to);
    }
    return std::vector<int32_t>(out.begin(), out.end());
  };
  block(
      lock, rank, name, [&] { return wall_seconds() >= end; }, missing, end);
}

void ThreadJob::fail(int32_t rank, const std::string& message, bool input_error) {
  if (failed_) return;
  failed_ = true;
  input_error_ = input_error;
  failure_ = with_rank(rank, message);
  wake_all();
}

void ThreadJob::wake_all() {
  for (std::condition_variable& sleeper : sleepers_) sleeper.notify_all();
}

void ThreadJob::lose(int32_t rank, const std::string& message) {
  if (failed_) return;
  std::vector<int32_t> lost;
  for (const LostRank& before : losses_) lost.push_back(before.rank);
  lost.push_back(rank);
  if (!options_.can_lose || !options_.can_lose(lost)) return fail(rank, message, false);
  losses_.push_back({rank, with_rank(rank, message)});
  wake_all();
}

std::pair<size_t, std::shared_ptr<SurvivorRound>> ThreadJob::agree(Lock& lock, int32_t rank,
                                                                   const std::string& name) {
  const auto ranks = static_cast<int32_t>(known_.size());
  for (;;) {
    const size_t count = losses_.size();
    known_[rank] = count;
    std::shared_ptr<SurvivorRound>& place = rounds_[count];
    if (!place) place = std::make_shared<SurvivorRound>();
    const std::shared_ptr<SurvivorRound> round = place;
    round->arrived.resize(ranks);
    round->arrived[rank] = true;
    std::vector<char> lost(ranks);
    for (size_t i = 0; i < count; ++i) lost[losses_[i].rank] = true;
    const auto missing = [&] {
      std::vector<int32_t> out;
      for (int32_t peer = 0; peer < ranks; ++peer)
        if (!lost[peer] && !round->arrived[peer] && !ended_[peer]) out.push_back(peer);
      return out;
    };
    const auto complete = [&] {
      if (round->complete || losses_.size() != count || !missing().empty()) return round->complete;
      for (int32_t peer = 0; peer < ranks; ++peer) {
        if (round->arrived[peer]) round->ranks.push_back(peer);
        round->some_ended |= !lost[peer] && !round->arrived[peer];
      }
      wake_all();
      return round->complete = true;
    };
    block(
        lock, rank, name, [&] { return complete() || losses_.size() != count; }, missing);
    if (round->complete) return {count, round};
  }
}

std::string ThreadJob::waits_of(std::vector<int32_t> peers) const {
  std::string out;
  for (size_t hop = 0; hop < sleeps_.size() && !peers.empty(); ++hop) {
    const auto is_awake = [&](int32_t peer) { return !sleeps_[peer].name && expired_[peer].name.empty(); };
    if (std::any_of(peers.begin(), peers.end(), is_awake)) break;
    const Sleep& next = sleeps_[peers[0]];
    const Expired& before = expired_[peers[0]];
    peers = next.name ? next.missing() : before.peers;
    if (peers.empty()) break;
    out += next.name ? format(", which waits for {} in {}", rank_list(peers), *next.name)
                     : format(", which waited for {} in {}", rank_list(peers), before.name);
  }
  return out;
}

void ThreadJob::check_running(int32_t rank, const std::string& name) const {
  if (failed_) throw PeerError(stopped_message(rank, {}, name, failure_));
  check_losses(rank, name, {});
}

void ThreadJob::check_losses(int32_t rank, const std::string& name, const std::vector<int32_t>& peers) const {
  if (known_[rank] == losses_.size()) return;
  const LostRank& lost = losses_[known_[rank]];
  throw RankLost(stopped_message(rank, peers, name, lost.failure), lost);
}

void ThreadJob::throw_failure() const {
  if (!failed_) return;
  if (input_error_) throw InputError(failure_);
  throw Error(failure_);
}

}  // namespace distca
