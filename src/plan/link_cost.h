// Plans that weigh bytes against compute. An exchange is free only while it hides behind compute: where a
// balanced plan's would take longer than that lasts, a plan that ships less ends sooner, though its loads are
// less even. Several limits of bytes are tried, and the plan that ends first is taken.
#pragma once

#include "plan/policy.h"

namespace distca {

/// What a link carries while a server computes, both in the unit of loads.
struct LinkCost {
  double load_per_byte = 0;  // load that a speed-1 server computes while its port carries a byte
  double latency = 0;        // of one message
  bool hidden = true;        // exchanges travel beside as much compute as the plan's own; else they follow it
};

/// What a plan takes, in the unit of loads.
struct PlanTimes {
  double compute = 0;   // until the last server is done: CI and load, at its speed
  double exchange = 0;  // of the server that sends or receives most: dispatch and collect

  double total(const LinkCost& link) const;
};

PlanTimes plan_times(const Plan& plan, const PlanOptions& options, const LinkCost& link);

/// make_plan(), or a plan that ships less where that ends sooner. Where the options have a byte limit, that
/// one counts. Throws what make_plan() throws.
PlanResult make_plan(const Layout& layout, const PlanOptions& options, const LinkCost& link);

}  // namespace distca
