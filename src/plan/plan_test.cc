#include "plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/check.h"
#include "base/digest.h"
#include "base/json.h"
#include "plan/random_plan.h"
#include "plan/validate.h"

namespace distca {
namespace {

using testing::HasSubstr;

/// How often each (query, key) pair of each document is covered, pair by pair. True when it is once each.
bool covered_once_each(const Plan& plan) {
  for (size_t doc = 0; doc < plan.layout.doc_lengths.size(); ++doc) {
    const int64_t length = plan.layout.doc_lengths[doc];
    std::vector<int> count(static_cast<size_t>(length * length), 0);
    for (const Task& task : plan.tasks) {
      if (task.doc != static_cast<int32_t>(doc)) continue;
      for (int64_t q = task.q.begin; q < task.q.end; ++q) {
        for (int64_t k = task.kv.begin; k < std::min(task.kv.end, q + 1); ++k)
          ++count[static_cast<size_t>(q * length + k)];
      }
    }
    for (int64_t q = 0; q < length; ++q) {
      for (int64_t k = 0; k <= q; ++k) {
        if (count[static_cast<size_t>(q * length + k)] != 1) return false;
      }
    }
  }
  return true;
}

std::string fault_of(const Plan& plan) {
  try {
    plan.validate();
  } catch (const InputError& error) {
    return std::string("wrong kind of error: ") + error.what();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(Plan, AThousandRandomPlansAreValidAndCoverEachPairOnce) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Plan plan = random_plan(random, random_layout(random, 8, 500));
    ASSERT_EQ(fault_of(plan), "none");
    ASSERT_TRUE(covered_once_each(plan));
  }
}

TEST(Plan, ValidateAgreesWithTheCountOnPlansWithATaskChanged) {
  int faulty = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Plan plan = random_plan(random, random_layout(random, 4, 400));
    if (plan.tasks.empty()) continue;
    Task& task =
        plan.tasks[static_cast<size_t>(random.between(0, static_cast<int64_t>(plan.tasks.size()) - 1))];
    int64_t* const ends[] = {&task.q.begin, &task.q.end, &task.kv.begin, &task.kv.end};
    *ends[random.between(0, 3)] =
        std::min(kTileRows * random.between(0, 3), plan.layout.doc_lengths[static_cast<size_t>(task.doc)]);
    plan.sort_tasks();
    if (!covered_once_each(plan)) {
      ++faulty;
      ASSERT_NE(fault_of(plan), "none");
    }
  }
  EXPECT_GT(faulty, 300);
}

/// Damages a plan that fills every row, and returns a part that the fault's message must have.
std::string damage(Random& random, Plan& plan) {
  const auto pick = [&](size_t size) {
    return static_cast<size_t>(random.between(0, static_cast<int64_t>(size) - 1));
  };
  const size_t i = pick(plan.tasks.size()), s = pick(plan.layout.shards.size());
  Task& task = plan.tasks[i];
  Shard& shard = plan.layout.shards[s];
  const std::string in_document = format("document {}", task.doc);
  switch (random.between(0, 8)) {
    case 0:  // a task dropped
      plan.tasks.erase(plan.tasks.begin() + static_cast<int64_t>(i));
      return in_document;
    case 1:  // a task doubled, on any server
      plan.tasks.push_back(task);
      plan.tasks.back().server = static_cast<int32_t>(pick(static_cast<size_t>(plan.servers)));
      break;
    case 2:  // query rows dropped
      task.q.end = task.q.begin + random.between(0, task.q.size() - 1);
      break;
    case 3:  // keys dropped
      task.kv.begin += random.between(1, task.kv.size());
      break;
    case 4:  // keys doubled, or a negative position
      task.kv.begin -= random.between(1, kTileRows);
      break;
    case 5: {  // shifted along the keys or the queries
      const int64_t shift = (random.between(0, 1) == 0 ? -1 : 1) * random.between(1, kTileRows);
      Span& span = random.between(0, 1) == 0 ? task.q : task.kv;
      span = {span.begin + shift, span.end + shift};
      break;
    }
    case 6:
      shard.home += static_cast<int32_t>(random.between(1, 3));
      return "shard";
    case 7:
      shard.row += (random.between(0, 1) == 0 ? -1 : 1) * random.between(1, 5);
      return "shard";
    case 8:
      task.server = plan.servers + static_cast<int32_t>(random.between(0, 3));
      plan.sort_tasks();
      return format("there are {} servers", plan.servers);
  }
  plan.sort_tasks();
  return in_document;
}

TEST(Plan, TwoHundredDamagedPlansAreEachCaughtByName) {
  int damaged = 0;
  for (uint64_t seed = 0; damaged < 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Plan plan = random_plan(random, random_full_layout(random, 6, 600));
    if (plan.tasks.empty()) continue;
    ++damaged;
    const std::string part = damage(random, plan);
    ASSERT_THAT(fault_of(plan), HasSubstr(part));
    ASSERT_THAT(fault_of(plan), testing::Not(HasSubstr("wrong kind")));
  }
}

TEST(Plan, NamesAHoleADoubleAndARaggedEdge) {
  const Layout layout = pack_in_order({384}, 1);
  const auto fault = [&](std::vector<Task> tasks) { return fault_of({layout, 1, std::move(tasks)}); };
  EXPECT_EQ(fault({{0, {0, 384}, {0, 384}, 0}}), "none");
  EXPECT_EQ(
      fault({{0, {0, 128}, {0, 128}, 0}, {0, {128, 384}, {128, 384}, 0}}),
      "document 0: queries [128, 384): keys [0, 128) are covered by no task, task 1 (document 0, queries "
      "[128, 384), keys [128, 384), server 0) comes next");
  EXPECT_THAT(fault({{0, {0, 384}, {0, 384}, 0}, {0, {256, 384}, {128, 256}, 0}}),
              HasSubstr("document 0: queries [256, 384): keys [128, 384) are covered twice"));
  EXPECT_THAT(fault({{0, {0, 100}, {0, 100}, 0}, {0, {100, 384}, {0, 384}, 0}}),
              HasSubstr("[0, 100) ends at neither"));
  EXPECT_THAT(
      fault({{0, {0, 128}, {0, 128}, 0}, {0, {128, 384}, {0, 256}, 0}, {0, {256, 384}, {256, 384}, 0}}),
      HasSubstr("neither diagonal"));
  EXPECT_THAT(fault({{0, {128, 384}, {0, 384}, 0}}), HasSubstr("queries [0, 128) are covered by no task"));
  EXPECT_THAT(fault({}), HasSubstr("queries [0, 384) are covered by no task"));
}

TEST(Plan, ATaskMayNotSpanTwoHomes) {
  EXPECT_THAT(fault_of({pack_in_order({256}, 2), 2, {{0, {0, 256}, {0, 256}, 0}}}),
              HasSubstr("two homes, 0 and 1"));
}

TEST(Plan, TasksOutOfOrderAreAFault) {
  const Layout layout = pack_in_order({256}, 1);
  EXPECT_THAT(fault_of({layout, 1, {{0, {128, 256}, {0, 256}, 0}, {0, {0, 128}, {0, 128}, 0}}}),
              HasSubstr("task 1 (document 0, queries [0, 128), keys [0, 128), server 0) is out of order"));
}

TEST(Plan, ADumpRestoresTheIdenticalPlan) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Plan plan = random_plan(random, random_layout(random, 5, 600));
    const Plan restored = parse_plan(dump_plan(plan), "dump");
    EXPECT_EQ(restored.layout.doc_lengths, plan.layout.doc_lengths);
    EXPECT_EQ(restored.layout.ranks, plan.layout.ranks);
    EXPECT_EQ(restored.layout.rows, plan.layout.rows);
    EXPECT_EQ(restored.layout.shards, plan.layout.shards);
    EXPECT_EQ(restored.servers, plan.servers);
    EXPECT_EQ(restored.tasks, plan.tasks);
    EXPECT_EQ(restored.digest(), plan.digest());
  }
}

TEST(Plan, ADumpHasTheKeysOfTheDocumentation) {
  const Plan plan{pack_in_order({130}, 2), 3, {{0, {0, 65}, {0, 65}, 0}, {0, {65, 130}, {0, 130}, 2}}};
  const Json dump = parse_json(dump_plan(plan), "dump");
  EXPECT_EQ(dump["doc_lengths"].dump(), "[130]");
  EXPECT_EQ(dump["servers"].dump(), "3");
  EXPECT_EQ(dump["shards"].dump(), "[[0,0,65,0],[0,65,130,1]]");
  EXPECT_EQ(dump["tasks"].dump(), "[[0,0,65,0,65,0],[0,65,130,0,130,2]]");
  EXPECT_EQ(dump["digest"].get<std::string>(), hex_digest(plan.digest()));
}

TEST(Plan, ADumpThatWasChangedOrIsMalformedIsAnInputError) {
  const Plan plan{pack_in_order({130}, 1), 1, {{0, {0, 130}, {0, 130}, 0}}};
  const auto error = [&](const std::function<void(Json&)>& change) -> std::string {
    Json dump = parse_json(dump_plan(plan), "dump");
    change(dump);
    try {
      parse_plan(dump.dump(), "plan.json");
    } catch (const InputError& fault) {
      return fault.what();
    }
    return "none";
  };
  EXPECT_EQ(error([](Json&) {}), "none");
  EXPECT_THAT(error([](Json& dump) { dump["tasks"][0][5] = 3; }), HasSubstr("plan.json: its digest is"));
  EXPECT_THAT(error([](Json& dump) { dump.erase("tasks"); }), HasSubstr("it has no \"tasks\""));
  EXPECT_THAT(error([](Json& dump) {
                dump["tasks"][0] = {1, 2};
              }),
              HasSubstr("plan.json: tasks[0]: has 2 numbers, not 6"));
  EXPECT_THAT(error([](Json& dump) { dump["shards"][0][1] = "x"; }),
              HasSubstr("plan.json: shards[0]: \"x\""));
  EXPECT_THAT(error([](Json& dump) { dump["servers"] = 1LL << 40; }), HasSubstr("too large"));
  EXPECT_THAT(error([&](Json& dump) {
                Plan broken = plan;
                broken.tasks.clear();
                dump = parse_json(dump_plan(broken), "dump");
              }),
              HasSubstr("plan.json: not a valid plan: document 0"));
  EXPECT_THROW(load_plan("/nowhere/plan.json"), InputError);
}

TEST(Plan, DigestsDifferWhereverPlansDo) {
  const Plan plan{pack_in_order({130, 70}, 2), 2, {{0, {0, 100}, {0, 100}, 0}}};
  std::vector<Plan> others(8, plan);
  others[0].servers = 3;
  others[1].tasks[0].server = 1;
  others[2].tasks[0].q.end = 99;
  others[3].layout.shards[0].row = 1;
  others[4].layout.doc_lengths = {70, 130};
  others[5].layout.rows = 101;
  others[6].tasks.clear();
  others[7].layout.ranks = 3;
  for (size_t i = 0; i < others.size(); ++i) EXPECT_NE(others[i].digest(), plan.digest()) << i;
  EXPECT_EQ(Plan(plan).digest(), plan.digest());
}

TEST(Plan, APlanForAnotherBatchIsAnInputErrorThatNamesTheDifference) {
  const Plan plan{pack_in_order({130, 70}, 2), 2, {}};
  check_made_for(plan, pack_in_order({130, 70}, 2));
  const auto error = [&](const Layout& layout) -> std::string {
    try {
      check_made_for(plan, layout);
    } catch (const InputError& fault) {
      return fault.what();
    }
    return "none";
  };
  EXPECT_THAT(error(pack_in_order({130, 71}, 2)),
              HasSubstr("document 1 has 70 tokens there, 71 in the batch"));
  EXPECT_THAT(error(pack_in_order({130}, 2)), HasSubstr("it has 2 documents, the batch 1"));
  EXPECT_THAT(error(pack_in_order({130, 70}, 4)),
              HasSubstr("2 ranks of 100 rows, the batch lies on 4 of 50"));
}

TEST(Plan, ValidateIsNotQuadraticInTheLengthOfADocument) {
  const int64_t tiles = 1 << 17;
  Plan plan{pack_in_order({tiles * kTileRows}, 1), 1, {}};
  for (int64_t i = 0; i < tiles; ++i)
    plan.tasks.push_back({0, {i * kTileRows, (i + 1) * kTileRows}, {0, (i + 1) * kTileRows}, 0});
  EXPECT_EQ(fault_of(plan), "none");
}

}  // namespace
}  // namespace distca
