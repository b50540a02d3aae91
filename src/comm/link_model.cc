#include "comm/link_model.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>

#include "base/check.h"

namespace distca {

BusyTimes::Use BusyTimes::take(double from, double seconds) {
  auto next = intervals_.upper_bound(from);
  double begin = from, merged = from;  // where the interval that this becomes part of begins
  if (next != intervals_.begin() && std::prev(next)->second >= from) {
    const auto before = std::prev(next);
    merged = before->first;
    begin = before->second;
    intervals_.erase(before);
  }
  double end = begin;
  // From `begin` on all free time is taken, so that what it passes becomes one interval.
  while (next != intervals_.end() && next->first - end < seconds) {
    seconds -= next->first - end;
    end = next->second;
    next = intervals_.erase(next);
  }
  end += seconds;
  const bool touches = next != intervals_.end() && next->first <= end;
  intervals_[merged] = touches ? next->second : end;
  if (touches) intervals_.erase(next);
  return {begin, end};
}

void BusyTimes::forget(double time) {
  auto last = intervals_.begin();
  while (last != intervals_.end() && last->second < time) ++last;
  intervals_.erase(intervals_.begin(), last);
}

LinkModel::LinkModel(const LinkOptions& options, int32_t ranks) : options_(options), ranks_(ranks) {
  for (double value : {options.latency, options.bandwidth, options.node_latency, options.node_bandwidth}) {
    DISTCA_CHECK_INPUT(std::isfinite(value) && value >= 0,
                       "a link's latency and bandwidth are finite and not negative; {} is not", value);
  }
  DISTCA_CHECK_INPUT(options.ranks_per_node >= 0, "ranks_per_node = {} is negative", options.ranks_per_node);
  const int64_t nodes =
      options.ranks_per_node == 0 ? 1 : (ranks + options.ranks_per_node - 1) / options.ranks_per_node;
  egress_.resize(ranks + nodes);
  ingress_.resize(ranks + nodes);
}

bool LinkModel::costs_time(const LinkOptions& options) {
  return options.latency > 0 || options.bandwidth > 0 ||
         (options.ranks_per_node > 0 && (options.node_latency > 0 || options.node_bandwidth > 0));
}

LinkModel::Route LinkModel::route(const Transfer& transfer) const {
  const int64_t per_node = options_.ranks_per_node == 0 ? ranks_ : options_.ranks_per_node;
  const int64_t from = transfer.from / per_node, to = transfer.to / per_node;
  const auto per_byte = [](double bandwidth) { return bandwidth > 0 ? 1 / bandwidth : 0; };
  if (from == to) {
    return {static_cast<size_t>(transfer.from), static_cast<size_t>(transfer.to), options_.latency,
            per_byte(options_.bandwidth)};
  }
  return {static_cast<size_t>(ranks_ + from), static_cast<size_t>(ranks_ + to), options_.node_latency,
          per_byte(options_.node_bandwidth)};
}

std::shared_ptr<Transfer> LinkModel::post(int32_t from, int32_t to, int64_t bytes, double now) {
  auto transfer = std::make_shared<Transfer>(Transfer{from, to, bytes, now});
  const Route way = route(*transfer);
  if (from == to || bytes == 0 || way.seconds_per_byte == 0) {
    transfer->left = now;
    transfer->arrived = from == to ? now : now + way.latency;
  } else {
    events_.push({{now, from, messages_++}, transfer, false});
  }
  return transfer;
}

void LinkModel::run(const Event& event) {
  Transfer& transfer = *event.transfer;
  const Route way = route(transfer);
  const double seconds = static_cast<double>(transfer.bytes) * way.seconds_per_byte;
  if (!event.reached) {
    const BusyTimes::Use use = egress_[way.egress].take(transfer.sent, seconds);
    transfer.left = use.end;
    const auto [time, from, number] = event.order;
    events_.push({{use.begin, from, number}, event.transfer, true, use.begin});
    return;
  }
  const BusyTimes::Use use = ingress_[way.ingress].take(event.egress_begin + way.latency, seconds);
  transfer.arrived = std::max(use.end, transfer.left + way.latency);
}

void LinkModel::decide(const Transfer& transfer) {
  while (transfer.arrived == kNotDecided) {
    DISTCA_CHECK(!events_.empty(), "a transfer that was never posted");
    const Event event = events_.top();
    events_.pop();
    run(event);
  }
}

void LinkModel::forget(double time) {
  if (!events_.empty()) time = std::min(time, std::get<0>(events_.top().order));
  for (BusyTimes& port : egress_) port.forget(time);
  for (BusyTimes& port : ingress_) port.forget(time);
}

}  // namespace distca
