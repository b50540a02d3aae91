#include "train/speeds.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "base/json.h"

namespace distca {
namespace {

constexpr double kKept = 0.6;        // of the sums, from step to step
constexpr int64_t kLookedAt = 3;     // steps between looks at what was measured
constexpr double kNoticed = 0.1;     // a change of less than this share is left alone
constexpr double kRoundedTo = 0.05;  // also the least speed

}  // namespace

void check_speeds(const SpeedSetting& setting, const RankGrid& grid) {
  const auto count = static_cast<int32_t>(setting.given.size());
  DISTCA_CHECK_INPUT(count == 0 || count == grid.world_size() || count == grid.attention_ranks(),
                     "parallel.speeds has {} numbers: give one a rank ({}) or one an attention server ({})",
                     count, grid.world_size(), grid.attention_ranks());
}

ServerSpeeds::ServerSpeeds(const SpeedSetting& setting, const RankGrid& grid)
    : measured_(setting.measured),
      loads_(static_cast<size_t>(grid.attention_ranks())),
      seconds_(static_cast<size_t>(grid.attention_ranks())) {
  if (setting.given.empty()) return;
  if (static_cast<int32_t>(setting.given.size()) == grid.attention_ranks()) {
    next_ = setting.given;
  } else {
    for (auto first = setting.given.begin(); first != setting.given.end(); first += grid.tp)
      next_.push_back(*std::min_element(first, first + grid.tp));
  }
  next_ = after_next_ = speeds_of(next_, 0, grid.attention_ranks());
}

std::vector<double> ServerSpeeds::newly_measured() const {
  const std::vector<double> ones(loads_.size(), 1);
  const std::vector<double>& before = after_next_.empty() ? ones : after_next_;
  // Those that did nothing lately are as fast as they were, beside the mean of the others.
  double rates = 0, speeds = 0;
  for (size_t i = 0; i < loads_.size(); ++i) {
    if (loads_[i] <= 0 || seconds_[i] <= 0) continue;
    rates += loads_[i] / seconds_[i];
    speeds += 1;
  }
  if (speeds == 0) return after_next_;
  bool changed = false;
  std::vector<double> now = before;
  for (size_t i = 0; i < loads_.size(); ++i) {
    if (loads_[i] <= 0 || seconds_[i] <= 0) continue;
    const double speed = loads_[i] / seconds_[i] / (rates / speeds);
    changed = changed || std::abs(speed / before[i] - 1) > kNoticed;
    now[i] = std::max(kRoundedTo, std::round(speed / kRoundedTo) * kRoundedTo);
  }
  return changed ? speeds_of(now, 0, static_cast<int32_t>(now.size())) : after_next_;
}

void ServerSpeeds::add_step(std::span<const double> loads, std::span<const double> seconds) {
  next_ = after_next_;
  if (!measured_) return;
  for (size_t i = 0; i < loads_.size(); ++i) {
    loads_[i] = kKept * loads_[i] + loads[i];
    seconds_[i] = kKept * seconds_[i] + seconds[i];
  }
  if (++steps_ % kLookedAt == 0) after_next_ = newly_measured();
}

std::string ServerSpeeds::dump() const {
  return Json{{"measured", measured_},     {"steps", steps_}, {"next", next_},
              {"after_next", after_next_}, {"loads", loads_}, {"seconds", seconds_}}
      .dump();
}

void ServerSpeeds::restore(std::string_view state, const std::string& origin) {
  const Json json = parse_json(state, origin);
  try {
    const auto loads = json.at("loads").get<std::vector<double>>();
    if (!measured_ || !json.at("measured").get<bool>() || loads.size() != loads_.size()) return;
    const auto seconds = json.at("seconds").get<std::vector<double>>();
    const auto next = json.at("next").get<std::vector<double>>();
    const auto after_next = json.at("after_next").get<std::vector<double>>();
    for (const std::vector<double>* list : {&next, &after_next})
      DISTCA_CHECK_INPUT(list->empty() || list->size() == loads.size(), "{}: {} speeds of {} servers", origin,
                         list->size(), loads.size());
    DISTCA_CHECK_INPUT(seconds.size() == loads.size(), "{}: {} seconds of {} servers", origin, seconds.size(),
                       loads.size());
    json.at("steps").get_to(steps_);
    loads_ = loads, seconds_ = seconds, next_ = next, after_next_ = after_next;
  } catch (const Json::exception&) {
    throw InputError(format("{}: the speeds in it are damaged", origin));
  }
}

std::vector<double> speeds_of(const std::vector<double>& all, int32_t begin, int32_t end) {
  std::vector<int32_t> servers(static_cast<size_t>(end - begin));
  std::iota(servers.begin(), servers.end(), begin);
  return speeds_of(all, servers);
}

std::vector<double> speeds_of(const std::vector<double>& all, const std::vector<int32_t>& servers) {
  if (all.empty()) return {};
  std::vector<double> some;
  for (const int32_t server : servers) some.push_back(all[static_cast<size_t>(server)]);
  const bool equal = std::all_of(some.begin(), some.end(), [](double speed) { return speed == 1; });
  return equal ? std::vector<double>{} : some;
}

}  // namespace distca
