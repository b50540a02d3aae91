#include "base/span_log.h"

#include <gtest/gtest.h>

#include "base/chrome_trace.h"
#include "base/json.h"

namespace distca {
namespace {

Json events_of(const std::string& whole) {
  return parse_json(whole, "trace").at("traceEvents");
}

/// The bars of one lane, by name.
std::vector<std::string> bars_on(const Json& events, const std::string& lane) {
  int thread = -1;
  for (const Json& event : events) {
    if (event["name"] == "thread_name" && event["args"]["name"] == lane) thread = event["tid"];
  }
  std::vector<std::string> out;
  for (const Json& event : events) {
    if (event["ph"] == "X" && event["tid"] == thread) out.push_back(event["name"]);
  }
  return out;
}

TEST(SpanLog, RecordsOnlyWhileItIsOn) {
  double clock = 1;
  SpanLog log([&] { return clock; });
  { const SpanTimer timer(&log, WorkKind::kCi, "before"); }
  { const SpanTimer timer(nullptr, WorkKind::kCi, "nowhere"); }
  log.start();
  log.place = {.step = 4, .layer = 2, .nano_batch = 1, .micro_batch = 0, .phase = "forward"};
  {
    const SpanTimer timer(&log, WorkKind::kAttention, "attend");
    clock = 3.5;
  }
  log.stop();
  log.add(WorkKind::kWait, "after", 0, 1);
  ASSERT_EQ(log.spans().size(), 1u);
  const WorkSpan& span = log.spans()[0];
  EXPECT_EQ(span.kind, WorkKind::kAttention);
  EXPECT_STREQ(span.name, "attend");
  EXPECT_EQ(span.place.layer, 2);
  EXPECT_EQ(span.begin, 1);
  EXPECT_EQ(span.end, 3.5);
}

std::vector<std::string> shown_ranges;

TEST(SpanLog, TimersAreRangesOfAProfilerWithoutALogToo) {
  SpanTimer::show_ranges([](const char* name) { shown_ranges.push_back(name); },
                         [] { shown_ranges.push_back("end"); });
  {
    const SpanTimer outer(nullptr, WorkKind::kCi, "layer");
    const SpanTimer inner(nullptr, WorkKind::kMerge, "merge");
  }
  SpanTimer::show_ranges(nullptr, nullptr);
  { const SpanTimer after(nullptr, WorkKind::kCi, "after"); }
  EXPECT_EQ(shown_ranges, (std::vector<std::string>{"layer", "merge", "end", "end"}));
}

TEST(SpanLog, SecondsCountEachTimeOnce) {
  double clock = 0;
  SpanLog log([&] { return clock; });
  log.start(/*keep_spans=*/false);
  {
    const SpanTimer outer(&log, WorkKind::kCi, "layer");
    clock = 2;
    {
      const SpanTimer inner(&log, WorkKind::kMerge, "merge");
      clock = 3;
      log.add_wait("rows", 2.25, 2.75);
      log.add(WorkKind::kCommunication, "dispatch", 0, 3);
    }
    clock = 7;
    const SpanTimer second(&log, WorkKind::kMerge, "merge");
    clock = 8;
  }
  log.place.idle = true;
  log.add_wait("stage", 8, 10);
  const auto seconds = [&](WorkKind kind) { return log.seconds()[static_cast<size_t>(kind)]; };
  EXPECT_EQ(seconds(WorkKind::kCi), 6);
  EXPECT_EQ(seconds(WorkKind::kMerge), 1.5);
  EXPECT_EQ(seconds(WorkKind::kWait), 0.5);
  EXPECT_EQ(seconds(WorkKind::kBubble), 2);
  EXPECT_EQ(seconds(WorkKind::kCommunication), 3);
  EXPECT_TRUE(log.spans().empty());
  log.forget_seconds();
  EXPECT_EQ(seconds(WorkKind::kCi), 0);
}

TEST(SpanLog, ATraceHasALaneForEachKindOfWorkAndOneClock) {
  WorkSpan message{WorkKind::kCommunication, "dispatch", {}, 10.5, 11};
  message.place = {.layer = 7, .phase = "backward"};
  message.bytes = int64_t{1} << 40;
  message.peer = 0;
  const std::vector<WorkSpan> spans = {
      message, {WorkKind::kPlan, "plan", {}, 10, 12}, {WorkKind::kMerge, "merge", {}, 10.25, 10.75}};
  const Json events = events_of(ChromeTrace::whole(std::vector<std::string>{trace_events(3, spans, 10)}));
  EXPECT_EQ(bars_on(events, "compute"), std::vector<std::string>{"merge"});
  EXPECT_EQ(bars_on(events, "communication"), std::vector<std::string>{"dispatch"});
  EXPECT_EQ(bars_on(events, "planner"), std::vector<std::string>{"plan"});
  for (const Json& event : events) EXPECT_EQ(event["pid"], 3);
  const Json& bar = events.back();
  EXPECT_EQ(bar["ts"], 0.5e6);
  EXPECT_EQ(bar["dur"], 0.5e6);
  EXPECT_EQ(bar["args"], parse_json(R"({"kind": "communication", "phase": "backward", "layer": 7,
                                        "bytes": 1099511627776, "peer": 0})",
                                    "expected"));
}

TEST(SpanLog, MessagesUnderWayTogetherDoNotOverlapOnALane) {
  std::vector<WorkSpan> spans;
  const std::pair<double, double> times[] = {{0, 4}, {1, 2}, {2, 6}, {3, 5}, {4, 7}};
  const char* names[] = {"a", "b", "c", "d", "e"};
  for (int i = 0; i < 5; ++i)
    spans.push_back({WorkKind::kCommunication, names[i], {}, times[i].first, times[i].second});
  const Json events = events_of(ChromeTrace::whole(std::vector<std::string>{trace_events(0, spans, 0)}));
  EXPECT_EQ(bars_on(events, "communication"), (std::vector<std::string>{"a", "e"}));
  EXPECT_EQ(bars_on(events, "communication 2"), (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(bars_on(events, "communication 3"), (std::vector<std::string>{"d"}));
}

TEST(ChromeTrace, NamesAreQuotedAndRanksPutTogether) {
  ChromeTrace a, b;
  a.add({"say \"hi\"\n", 0, 0, 0, 1e-6}, {});
  b.name_rank(1);
  const Json events = events_of(ChromeTrace::whole(std::vector<std::string>{a.events(), b.events()}));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["name"], "say \"hi\"\n");
  EXPECT_EQ(events[0]["dur"], 1);
  EXPECT_EQ(events[1]["args"]["name"], "rank 1");
  EXPECT_EQ(events_of(ChromeTrace().whole()).size(), 0u);
}

}  // namespace
}  // namespace distca
