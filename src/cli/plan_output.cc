#include "cli/plan_output.h"

#include <algorithm>
#include <cstdio>

#include "base/digest.h"

namespace distca {
namespace {

constexpr double kGiga = 1e9;

double giga(int64_t bytes) {
  return static_cast<double>(bytes) / kGiga;
}

}  // namespace

Json report_json(const PlanReport& report) {
  const Traffic& traffic = report.traffic;
  Json json;
  json["policy"] = report.policy;
  json["layout"] = report.layout;
  json["servers"] = report.servers;
  json["tolerance"] = report.tolerance;
  json["within_tolerance"] = report.within_tolerance;
  if (!report.shortfalls.empty()) json["shortfalls"] = report.shortfalls;
  json["pairs"] = {{"max_over_mean", report.pairs_max_over_mean},
                   {"padded_max_over_mean", report.padded_max_over_mean},
                   {"min_over_mean", report.min_over_mean}};
  json["tokens"] = {{"max_over_mean", report.tokens_max_over_mean},
                    {"max_deviation", report.token_deviation}};
  json["bytes"] = {{"total", traffic.total()},
                   {"q", traffic.q},
                   {"kv", traffic.k + traffic.v},
                   {"o", traffic.o + traffic.lse},
                   {"max_send", traffic.max_send()},
                   {"max_recv", traffic.max_receive()},
                   {"lower_bound", report.lower_bound ? Json(*report.lower_bound) : Json(nullptr)},
                   {"mask_bound", report.mask_bound ? Json(*report.mask_bound) : Json(nullptr)},
                   {"best_bound", report.best_bound ? Json(*report.best_bound) : Json(nullptr)}};
  if (report.all_gather) {
    json["all_gather"] = {{"total", report.all_gather->total()},
                          {"max_send", report.all_gather->max_send()},
                          {"max_recv", report.all_gather->max_receive()}};
  }
  json["rows"] = {{"max_over_mean", report.held_rows_max_over_mean}, {"max", report.max_held_rows}};
  json["loads"] = {{"home", report.home_loads}, {"planned", report.loads}};
  json["tasks"] = report.tasks;
  json["moved_tasks"] = report.moved_tasks;
  if (report.finish_max_over_best) json["finish"] = {{"max_over_best", *report.finish_max_over_best}};
  json["plan_ms"] = report.plan_ms;
  json["exchange_ms"] = report.exchange_ms;
  json["digest"] = hex_digest(report.digest);
  return json;
}

void print_reports(const Layout& layout, const std::vector<PlanReport>& reports) {
  std::printf("%zu documents, %lld tokens on %d ranks of %lld rows\n\n", layout.doc_lengths.size(),
              static_cast<long long>(layout.tokens()), layout.ranks, static_cast<long long>(layout.rows));
  std::printf("%-7s %-6s %8s %8s %8s %9s %9s %9s %7s %7s %8s %8s\n", "policy", "layout", "pairs", "padded",
              "tokens", "GB moved", "GB send", "GB recv", "÷bound", "tasks", "moved", "ms");
  std::printf("%-7s %-6s %8s %8s %8s %9s %9s %9s\n", "", "", "max/mean", "max/mean", "max/mean", "",
              "busiest", "busiest");
  for (const PlanReport& report : reports) {
    char bound[16] = "-";
    if (report.lower_bound && *report.lower_bound > 0) {
      std::snprintf(bound, sizeof bound, "%.2f",
                    static_cast<double>(report.traffic.total()) / *report.lower_bound);
    }
    std::printf("%-7s %-6s %8.3f %8.3f %8.3f %9.3f %9.3f %9.3f %7s %7lld %8lld %8.1f\n",
                report.policy.c_str(), report.layout.c_str(), report.pairs_max_over_mean,
                report.padded_max_over_mean, report.tokens_max_over_mean, giga(report.traffic.total()),
                giga(report.traffic.max_send()), giga(report.traffic.max_receive()), bound,
                static_cast<long long>(report.tasks), static_cast<long long>(report.moved_tasks),
                report.plan_ms + report.exchange_ms);
  }
  std::printf(
      "\nbytes: forward, one layer, bf16; what each task's server lacks, once a document and server\n");
  for (const PlanReport& report : reports) {
    if (report.finish_max_over_best) {
      std::printf("%s: the latest server finishes at %.4f of the best time it could\n", report.policy.c_str(),
                  *report.finish_max_over_best);
    }
    for (size_t i = 0; i < std::min<size_t>(5, report.shortfalls.size()); ++i) {
      std::printf("%s: %s\n", report.policy.c_str(), report.shortfalls[i].c_str());
    }
    if (report.shortfalls.size() > 5) std::printf("  and %zu more\n", report.shortfalls.size() - 5);
  }
}

double exchange_seconds(const Traffic& traffic, const Links& links, int32_t ranks_per_node) {
  const bool one_node = static_cast<int32_t>(traffic.ranks.size()) <= ranks_per_node;
  const LinkTimes& link = one_node ? links.intra : links.inter;
  // Dispatch and collect, each of which starts one exchange.
  return 2 * link.latency_s +
         static_cast<double>(std::max(traffic.max_send(), traffic.max_receive())) / link.bytes_per_s;
}

}  // namespace distca
