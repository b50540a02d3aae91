// What messages between ranks cost in time: a latency, and a place in the queues of two ports. Between ranks
// of one node a message leaves through its sender's port and comes in through its receiver's; between nodes,
// through the ports of the two nodes, which all ranks of a node share. A port carries `bandwidth` bytes/s out
// and as much in. Bytes flow through: the first one comes in while the last is still to leave.
//
// Each queue is first come, first served: egress in the order of send times, ingress in the order in which
// messages reach it. Times are decided when somebody asks for them, in the order of the clock among all
// messages that are known by then, whatever order they were posted in. A message that is posted after others
// were decided that it should have gone before takes the time that they left free. So the order in which
// threads happen to run matters only then, and never by more than the transfers it should have overtaken.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <queue>
#include <tuple>
#include <vector>

#include "comm/fabric.h"

namespace distca {

inline constexpr double kNotDecided = -1;

/// A message. Times are seconds on the clock of all ranks.
struct Transfer {
  int32_t from = 0, to = 0;
  int64_t bytes = 0;
  double sent = 0;
  double left = kNotDecided;     // its last byte has left the sender
  double arrived = kNotDecided;  // its last byte is there
};

/// The times in which something is busy.
class BusyTimes {
 public:
  struct Use {
    double begin, end;
  };
  /// Takes the first `seconds` at or after `from` that are free, in pieces where others lie between. Returns
  /// when it begins and ends.
  Use take(double from, double seconds);
  /// Nothing will be taken before `time` any more.
  void forget(double time);

 private:
  std::map<double, double> intervals_;  // begin → end; disjoint, none touches the next
};

class LinkModel {
 public:
  /// Throws InputError unless latencies and bandwidths are finite and not negative.
  LinkModel(const LinkOptions& options, int32_t ranks);

  /// Whether any message takes time.
  static bool costs_time(const LinkOptions& options);

  /// A message that is sent at `now`. One without bytes takes the latency and no port; so does one to a
  /// rank's own memory, without the latency.
  std::shared_ptr<Transfer> post(int32_t from, int32_t to, int64_t bytes, double now);

  /// Decides the times of `transfer`, and of all that go before it.
  void decide(const Transfer& transfer);

  /// Promises that nothing will be sent before `time` any more.
  void forget(double time);

 private:
  struct Event {
    std::tuple<double, int32_t, int64_t> order;  // time, sender, number of the message
    std::shared_ptr<Transfer> transfer;
    bool reached;  // the receiver's port; else the sender's
    double egress_begin = 0;
    bool operator>(const Event& other) const { return order > other.order; }
  };
  struct Route {
    size_t egress, ingress;  // ports
    double latency, seconds_per_byte;
  };

  Route route(const Transfer& transfer) const;
  void run(const Event& event);

  LinkOptions options_;
  int32_t ranks_;
  int64_t messages_ = 0;
  std::vector<BusyTimes> egress_, ingress_;  // of ranks, then of nodes
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace distca
