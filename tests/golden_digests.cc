// Digests of six plans, which must be the same whatever compiles the planner: golden_digests.sh builds this
// file with several compilers and optimization levels. A change that is meant to change plans changes the
// table below.
#include <cinttypes>
#include <cstdio>

#include "plan/distribution.h"
#include "plan/policy.h"

namespace distca {
namespace {

Layout sampled(Distribution distribution, int32_t chunks, uint64_t seed) {
  return pack_documents(sample_documents(distribution, chunks, 131072, seed));
}

Plan defaults() {
  return make_plan(sampled(Distribution::kWlbllm, 16, 1), {}).plan;
}

Plan tight_34b() {
  PlanOptions options;
  options.tolerance = 0.005;
  options.bytes = row_bytes({64, 8, 128, 2});
  return make_plan(sampled(Distribution::kProlong, 64, 2), options).plan;
}

Plan uneven_servers() {
  PlanOptions options;
  options.dedicated = 2;
  options.speeds = {1, 0.5, 1, 0.75, 1, 1, 1, 0.9, 1, 1};
  options.ci = {2e9, 0, 1e9, 0, 3e9, 5e8, 0, 0, 0, 0};
  return make_plan(sampled(Distribution::kWlbllm, 8, 3), options).plan;
}

Plan crossing_documents() {
  Random random(4);
  std::vector<int64_t> lengths;
  for (int i = 0; i < 60; ++i) lengths.push_back(random.between(0, i % 9 == 0 ? 90000 : 4000));
  PlanOptions options;
  options.tolerance = 0;
  return make_plan(pack_in_order(lengths, 11), options).plan;
}

Plan free_layout() {
  PlanOptions options;
  options.layout = LayoutKind::kFree;
  return make_plan(sampled(Distribution::kWlbllm, 32, 5), options).plan;
}

Plan measured_costs() {
  AttentionTimes times;
  for (int64_t at = 128; at <= 131072; at *= 2) times.q.push_back(at);
  times.kv = times.q;
  for (const int64_t q : times.q) {
    times.seconds.emplace_back();
    for (const int64_t kv : times.kv) {
      times.seconds.back().push_back(1e-5 + 3e-13 * static_cast<double>(q) * static_cast<double>(kv) * 0.7);
    }
  }
  PlanOptions options;
  options.cost = TaskCost(times);
  return make_plan(sampled(Distribution::kProlong, 24, 6), options).plan;
}

struct Golden {
  const char* name;
  Plan (*plan)();
  uint64_t digest;
};

constexpr Golden kGolden[] = {
    {"defaults", defaults, 0x6ca20c9f69be6a48},
    {"tight_34b", tight_34b, 0xb7a230c05980a5a1},
    {"uneven_servers", uneven_servers, 0xa7e860efc1225d2b},
    {"crossing_documents", crossing_documents, 0x463e8f7f693c3a32},
    {"free_layout", free_layout, 0xb0660456347aaeab},
    {"measured_costs", measured_costs, 0x03e5655e7ba18acd},
};

int run() {
  int different = 0;
  for (const Golden& golden : kGolden) {
    const uint64_t digest = golden.plan().digest();
    std::printf("%-20s %016" PRIx64 " %s\n", golden.name, digest, digest == golden.digest ? "" : "DIFFERENT");
    different += digest != golden.digest;
  }
  return different > 0;
}

}  // namespace
}  // namespace distca

int main() {
  return distca::run();
}
