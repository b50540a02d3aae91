#include "plan/plan.h"

#include <tuple>

#include "base/check.h"
#include "plan/validate.h"

namespace distca {
namespace {

/// Folds 64-bit words into 64 bits: each word is mixed as in splitmix64 (Steele, Lea, Flood 2014).
class Digest {
 public:
  void add(int64_t value) {
    uint64_t mixed = (state_ ^ static_cast<uint64_t>(value)) + 0x9e3779b97f4a7c15ULL;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
    state_ = mixed ^ (mixed >> 31);
  }
  void add(Span span) {
    add(span.begin);
    add(span.end);
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0x646973746361ULL;
};

}  // namespace

void Plan::validate() const {
  DISTCA_CHECK(servers >= layout.ranks, "{} servers for {} ranks with a home: every rank is one", servers,
               layout.ranks);
  distca::validate(layout);
  validate_coverage(layout, tasks);
  for (size_t i = 0; i < tasks.size(); ++i) {
    DISTCA_CHECK(tasks[i].server >= 0 && tasks[i].server < servers, "task {} ({}): there are {} servers", i,
                 text_of(tasks[i]), servers);
    const auto key = [](const Task& task) {
      return std::tuple(task.server, task.doc, task.q.begin, task.kv.begin);
    };
    DISTCA_CHECK(i == 0 || key(tasks[i - 1]) < key(tasks[i]),
                 "task {} ({}) is out of order: tasks go by server, document, query, key", i,
                 text_of(tasks[i]));
  }
}

uint64_t Plan::digest() const {
  Digest digest;
  digest.add(static_cast<int64_t>(layout.doc_lengths.size()));
  for (const int64_t length : layout.doc_lengths) digest.add(length);
  digest.add(layout.ranks);
  digest.add(layout.rows);
  digest.add(static_cast<int64_t>(layout.shards.size()));
  for (const Shard& shard : layout.shards) {
    digest.add(shard.doc);
    digest.add(shard.tokens);
    digest.add(shard.home);
    digest.add(shard.row);
  }
  digest.add(servers);
  digest.add(static_cast<int64_t>(tasks.size()));
  for (const Task& task : tasks) {
    digest.add(task.doc);
    digest.add(task.q);
    digest.add(task.kv);
    digest.add(task.server);
  }
  return digest.value();
}

void Plan::sort_tasks() {
  std::sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) {
    return std::tie(a.server, a.doc, a.q.begin, a.kv.begin) <
           std::tie(b.server, b.doc, b.q.begin, b.kv.begin);
  });
}

void check_same_documents(const Plan& plan, const Layout& layout) {
  const Layout& made = plan.layout;
  DISTCA_CHECK_INPUT(made.doc_lengths.size() == layout.doc_lengths.size(),
                     "the plan is for another batch: it has {} documents, the batch {}",
                     made.doc_lengths.size(), layout.doc_lengths.size());
  for (size_t doc = 0; doc < layout.doc_lengths.size(); ++doc) {
    DISTCA_CHECK_INPUT(made.doc_lengths[doc] == layout.doc_lengths[doc],
                       "the plan is for another batch: document {} has {} tokens there, {} in the batch", doc,
                       made.doc_lengths[doc], layout.doc_lengths[doc]);
  }
  DISTCA_CHECK_INPUT(made.ranks == layout.ranks,
                     "the plan is for {} ranks of {} rows, the batch lies on {} of {}", made.ranks, made.rows,
                     layout.ranks, layout.rows);
}

void check_made_for(const Plan& plan, const Layout& layout) {
  const Layout& made = plan.layout;
  check_same_documents(plan, layout);
  DISTCA_CHECK_INPUT(made.ranks == layout.ranks && made.rows == layout.rows,
                     "the plan is for {} ranks of {} rows, the batch lies on {} of {}", made.ranks, made.rows,
                     layout.ranks, layout.rows);
  DISTCA_CHECK_INPUT(made.shards.size() == layout.shards.size(), "the plan has {} shards, the layout {}",
                     made.shards.size(), layout.shards.size());
  for (size_t i = 0; i < layout.shards.size(); ++i) {
    DISTCA_CHECK_INPUT(made.shards[i] == layout.shards[i], "shard {} is ({}) in the plan, ({}) in the layout",
                       i, text_of(made.shards[i]), text_of(layout.shards[i]));
  }
}

}  // namespace distca
