#include "sim/recorded_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <tuple>

#include "base/json.h"

namespace distca {
namespace {

double error_of(const RecordedRow& row, const RecordedPrediction& prediction) {
  return prediction.ms / row.ms - 1;
}

RecordedErrors errors_of(RecordedClass kind, const std::vector<RecordedRow>& rows,
                         const std::vector<RecordedPrediction>& predictions) {
  RecordedErrors result{kind};
  std::vector<double> errors;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (class_of(rows[i]) != kind || rows[i].ms == 0) continue;
    errors.push_back(std::abs(error_of(rows[i], predictions[i])));
    const double off = std::abs(predictions[i].ms - rows[i].ms);
    if (predictions[i].spread_ms > 0)
      result.worst_spreads = std::max(result.worst_spreads, off / predictions[i].spread_ms);
  }
  result.rows = static_cast<int64_t>(errors.size());
  if (errors.empty()) return result;
  std::sort(errors.begin(), errors.end());
  result.median = (errors[errors.size() / 2] + errors[(errors.size() - 1) / 2]) / 2;
  result.worst = errors.back();
  return result;
}

/// What the rows of a group share.
auto group_key(const RecordedRow& row) {
  return std::tuple(row.model, row.dataset, row.nodes, row.batch, row.micro_batches, row.chunk_tokens,
                    row.pp);
}

std::string group_name(const RecordedRow& row) {
  return fmt::format("{} {} nodes, {} x {} tokens, {}", row.model, row.nodes, row.batch, row.chunk_tokens,
                     row.dataset);
}

/// Policies by the least of `ms` over their degrees, fastest first.
template <typename Ms>
std::vector<std::pair<double, std::string>> ranking(const std::vector<size_t>& members,
                                                    const std::vector<RecordedRow>& rows, Ms ms) {
  std::map<std::string, double> best;
  for (const size_t i : members) {
    const auto [at, is_new] = best.try_emplace(rows[i].policy, ms(i));
    if (!is_new) at->second = std::min(at->second, ms(i));
  }
  std::vector<std::pair<double, std::string>> order;
  for (const auto& [policy, seconds] : best) order.emplace_back(seconds, policy);
  std::sort(order.begin(), order.end());
  return order;
}

void count_pairs(const std::vector<size_t>& members, const std::vector<RecordedRow>& rows,
                 const std::vector<RecordedPrediction>& predictions, RecordedReport& report) {
  for (const size_t a : members) {
    for (const size_t b : members) {
      if (rows[b].ms < 1.05 * rows[a].ms) continue;
      ++report.pairs;
      report.right_pairs += predictions[b].ms > predictions[a].ms;
    }
  }
}

/// A number where the column is one.
Json value_of(const std::string& text) {
  int64_t whole = 0;
  double number = 0;
  const char *begin = text.data(), *end = begin + text.size();
  if (std::from_chars(begin, end, whole).ptr == end && !text.empty()) return whole;
  const auto parsed = std::from_chars(begin, end, number);
  if (parsed.ptr == end && !text.empty() && std::isfinite(number)) return number;
  return text;
}

Json row_json(const RecordedRow& row, const RecordedPrediction& prediction) {
  Json json = Json::object();
  for (const auto& [name, value] : row.columns) json[name] = value_of(value);
  json["predicted_ms"] = prediction.ms;
  json["spread_ms"] = prediction.spread_ms;
  if (row.ms > 0) json["error"] = error_of(row, prediction);
  json["class"] = name_of(class_of(row));
  return json;
}

}  // namespace

std::string name_of(RecordedClass kind) {
  switch (kind) {
    case RecordedClass::kFit:
      return "fitted";
    case RecordedClass::kHeld:
      return "held out";
    case RecordedClass::kFew:
      return "few samples";
    case RecordedClass::kPipeline:
      break;
  }
  return "not explained";
}

RecordedReport report_recorded(const std::vector<RecordedRow>& rows,
                               const std::vector<RecordedPrediction>& predictions) {
  RecordedReport report;
  for (const RecordedClass kind : kRecordedClasses) {
    const RecordedErrors errors = errors_of(kind, rows, predictions);
    if (errors.rows > 0) report.errors.push_back(errors);
  }
  std::map<decltype(group_key(rows[0])), std::vector<size_t>> groups;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].pp == 1 && rows[i].ms > 0) groups[group_key(rows[i])].push_back(i);
  }
  for (const auto& [key, members] : groups) {
    count_pairs(members, rows, predictions, report);
    const auto measured = ranking(members, rows, [&](size_t i) { return rows[i].ms; });
    if (measured.size() < 2) continue;
    const auto predicted = ranking(members, rows, [&](size_t i) { return predictions[i].ms; });
    report.groups.push_back({group_name(rows[members[0]]), measured[0].second, predicted[0].second,
                             measured[1].first / measured[0].first - 1});
  }
  return report;
}

std::string recorded_text(const std::vector<RecordedRow>& rows,
                          const std::vector<RecordedPrediction>& predictions, const RecordedReport& report) {
  std::string text =
      fmt::format("{:6} {:8} {:>5} {:>5} {:>5} {:>8} {:6} {:>3} {:>3} {:>7} {:>9} {:>10} {:>7} {:>7}  {}\n",
                  "model", "dataset", "nodes", "batch", "micro", "tokens", "policy", "cp", "pp", "samples",
                  "measured", "predicted", "spread", "error", "");
  for (size_t i = 0; i < rows.size(); ++i) {
    const RecordedRow& row = rows[i];
    text += fmt::format(
        "{:6} {:8} {:>5} {:>5} {:>5} {:>8} {:6} {:>3} {:>3} {:>7} {:>9} {:>10.0f} {:>7.0f} {:>7}  {}\n",
        row.model, row.dataset, row.nodes, row.batch, row.micro_batches, row.chunk_tokens, row.policy, row.cp,
        row.pp, row.samples, row.ms > 0 ? fmt::format("{:.0f}", row.ms) : "", predictions[i].ms,
        predictions[i].spread_ms,
        row.ms > 0 ? fmt::format("{:+.1f}%", 100 * error_of(row, predictions[i])) : "",
        name_of(class_of(row)));
  }
  text += "\nmilliseconds; the spread is a standard deviation over draws of the documents\n";
  for (const RecordedErrors& errors : report.errors) {
    text += fmt::format("{:14} {:>3} rows: median {:.1f}%, worst {:.1f}%", name_of(errors.kind), errors.rows,
                        100 * errors.median, 100 * errors.worst);
    if (errors.kind == RecordedClass::kFew)
      text += fmt::format(", at most {:.2f} spreads", errors.worst_spreads);
    text += '\n';
  }
  for (const RecordedGroup& group : report.groups) {
    text += fmt::format("fastest of {}: measured {} by {:.1f}%, predicted {}\n", group.name, group.measured,
                        100 * group.lead, group.predicted);
  }
  text += fmt::format("order right in {} of {} pairs at least 5% apart\n", report.right_pairs, report.pairs);
  return text;
}

std::string recorded_json(const std::vector<RecordedRow>& rows,
                          const std::vector<RecordedPrediction>& predictions, const RecordedReport& report) {
  Json json = {{"rows", Json::array()}, {"errors", Json::array()}, {"fastest", Json::array()}};
  for (size_t i = 0; i < rows.size(); ++i) json["rows"].push_back(row_json(rows[i], predictions[i]));
  for (const RecordedErrors& errors : report.errors) {
    json["errors"].push_back({{"class", name_of(errors.kind)},
                              {"rows", errors.rows},
                              {"median", errors.median},
                              {"worst", errors.worst},
                              {"worst_spreads", errors.worst_spreads}});
  }
  for (const RecordedGroup& group : report.groups) {
    json["fastest"].push_back({{"group", group.name},
                               {"measured", group.measured},
                               {"predicted", group.predicted},
                               {"lead", group.lead}});
  }
  json["order"] = {{"pairs", report.pairs}, {"right", report.right_pairs}};
  return json.dump();
}

}  // namespace distca
