#include "plan/validate.h"

#include <map>
#include <numeric>
#include <span>
#include <tuple>

#include "base/check.h"

namespace distca {
namespace {

std::string text_of(Span span) {
  return format("[{}, {})", span.begin, span.end);
}

/// Shards of each document: shards[first[doc]] up to shards[first[doc + 1]].
std::vector<size_t> first_shards(const Layout& layout) {
  std::vector<size_t> first(layout.doc_lengths.size() + 1, 0);
  for (const Shard& shard : layout.shards) ++first[static_cast<size_t>(shard.doc) + 1];
  std::partial_sum(first.begin(), first.end(), first.begin());
  return first;
}

void check_documents_covered(const Layout& layout) {
  size_t next = 0;
  for (size_t doc = 0; doc < layout.doc_lengths.size(); ++doc) {
    const int64_t length = layout.doc_lengths[doc];
    DISTCA_CHECK(length >= 0, "document {} has {} tokens", doc, length);
    int64_t end = 0;
    for (; next < layout.shards.size() && layout.shards[next].doc == static_cast<int32_t>(doc); ++next) {
      const Shard& shard = layout.shards[next];
      DISTCA_CHECK(shard.tokens.begin == end && shard.tokens.end > end && shard.tokens.end <= length,
                   "shard {} ({}): the document has {} tokens and its shards cover [0, {}) so far", next,
                   distca::text_of(shard), length, end);
      end = shard.tokens.end;
    }
    DISTCA_CHECK(end == length, "document {}: its shards cover [0, {}) of {} tokens", doc, end, length);
  }
  DISTCA_CHECK(next == layout.shards.size(), "shard {} ({}) is out of order or of no document", next,
               distca::text_of(layout.shards[next]));
}

void check_rows_apart(const Layout& layout) {
  std::vector<size_t> order(layout.shards.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const Shard &x = layout.shards[a], &y = layout.shards[b];
    return std::tie(x.home, x.row, a) < std::tie(y.home, y.row, b);
  });
  for (size_t i = 0; i < order.size(); ++i) {
    const Shard& shard = layout.shards[order[i]];
    DISTCA_CHECK(shard.home >= 0 && shard.home < layout.ranks, "shard {} ({}): there are {} ranks", order[i],
                 distca::text_of(shard), layout.ranks);
    DISTCA_CHECK(shard.row >= 0 && shard.row + shard.tokens.size() <= layout.rows,
                 "shard {} ({}) leaves its home's {} rows", order[i], distca::text_of(shard), layout.rows);
    if (i == 0) continue;
    const Shard& before = layout.shards[order[i - 1]];
    DISTCA_CHECK(before.home != shard.home || before.row + before.tokens.size() <= shard.row,
                 "shards {} ({}) and {} ({}) overlap in rows", order[i - 1], distca::text_of(before),
                 order[i], distca::text_of(shard));
  }
}

/// One document with its shards and the tasks that cover it.
class DocumentCoverage {
 public:
  DocumentCoverage(int64_t length, std::span<const Shard> shards, const std::vector<Task>& tasks)
      : length_(length), shards_(shards), tasks_(tasks) {}

  void check(const std::vector<size_t>& indices) {
    events_.clear();
    for (const size_t i : indices) {
      check_shape(i);
      // A diagonal task's rows before its first key see nothing.
      const Task& task = tasks_[i];
      events_.push_back({std::max(task.q.begin, task.kv.begin), true, i});
      events_.push_back({task.q.end, false, i});
    }
    std::sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) {
      return std::tie(a.row, a.starts, a.task) < std::tie(b.row, b.starts, b.task);
    });
    sweep();
  }

 private:
  struct Event {
    int64_t row;
    bool starts;
    size_t task;
  };

  std::string name(size_t i) const { return format("task {} ({})", i, distca::text_of(tasks_[i])); }

  const Shard& shard_at(int64_t position) const {
    return *(std::upper_bound(shards_.begin(), shards_.end(), position,
                              [](int64_t p, const Shard& s) { return p < s.tokens.begin; }) -
             1);
  }

  bool on_grid(int64_t edge) const {
    return edge % kTileRows == 0 || edge == length_ || shard_at(edge).tokens.begin == edge;
  }

  void check_shape(size_t i) const {
    const Task& task = tasks_[i];
    for (const Span span : {task.q, task.kv}) {
      DISTCA_CHECK(span.begin >= 0 && span.begin < span.end && span.end <= length_,
                   "{}: {} is empty or leaves the document's {} tokens", name(i), text_of(span), length_);
      DISTCA_CHECK(on_grid(span.begin) && on_grid(span.end),
                   "{}: {} ends at neither a multiple of {}, an edge of a shard nor the document's end",
                   name(i), text_of(span), kTileRows);
    }
    DISTCA_CHECK(task.kv.end == task.q.end || task.kv.end <= task.q.begin + 1,
                 "{} is neither diagonal (ends where its keys end) nor full (begins after its keys)",
                 name(i));
    const int32_t home = shard_at(task.q.begin).home;
    for (int64_t at = shard_at(task.q.begin).tokens.end; at < task.q.end; at = shard_at(at).tokens.end) {
      DISTCA_CHECK(shard_at(at).home == home, "{}: its queries have two homes, {} and {}", name(i), home,
                   shard_at(at).home);
    }
  }

  /// Walks down the query rows. Between two events the same tasks are active, and their keys must lie end to
  /// end from 0 on and reach the diagonal.
  void sweep() {
    int64_t row = 0;
    for (size_t i = 0; i < events_.size();) {
      if (events_[i].row > row) check_rows({row, events_[i].row});
      row = events_[i].row;
      for (; i < events_.size() && events_[i].row == row; ++i) {
        events_[i].starts ? add(events_[i].task) : remove(events_[i].task);
      }
    }
    if (row < length_) check_rows({row, length_});
  }

  void check_rows(Span rows) const {
    DISTCA_CHECK(!active_.empty(), "queries {} are covered by no task", text_of(rows));
    if (broken_ > 0 || active_.begin()->first != 0) report_break(rows);
    const Task& last = tasks_[active_.rbegin()->second];
    const bool reaches_diagonal = last.kv.end == last.q.end || (rows.size() == 1 && last.kv.end == rows.end);
    DISTCA_CHECK(reaches_diagonal, "queries {}: keys from {} on are covered by no task beside {}",
                 text_of(rows), last.kv.end, name(active_.rbegin()->second));
  }

  [[noreturn]] void report_break(Span rows) const {
    const std::string where = "queries " + text_of(rows);
    int64_t end = 0;
    for (const auto& [begin, task] : active_) {
      DISTCA_CHECK(begin <= end, "{}: keys {} are covered by no task, {} comes next", where,
                   text_of(Span{end, begin}), name(task));
      DISTCA_CHECK(begin == end, "{}: keys {} are covered twice, by {} and another task", where,
                   text_of(Span{begin, end}), name(task));
      end = tasks_[task].kv.end;
    }
    throw Error(where + ": keys aren't covered once each");
  }

  using Active = std::map<int64_t, size_t>;  // kv.begin -> task

  bool linked(Active::const_iterator a, Active::const_iterator b) const {
    return tasks_[a->second].kv.end == b->first;
  }

  /// How many joints beside `at` are broken, with `at` taken out if `without`.
  int64_t broken_beside(Active::const_iterator at, bool without) const {
    const auto next = std::next(at);
    const bool has_before = at != active_.begin(), has_next = next != active_.end();
    if (without) return has_before && has_next && !linked(std::prev(at), next);
    return (has_before && !linked(std::prev(at), at)) + (has_next && !linked(at, next));
  }

  void add(size_t i) {
    const auto [at, added] = active_.emplace(tasks_[i].kv.begin, i);
    DISTCA_CHECK(added, "{} and {} cover the same pairs", name(at->second), name(i));
    broken_ += broken_beside(at, false) - broken_beside(at, true);
  }

  void remove(size_t i) {
    const auto at = active_.find(tasks_[i].kv.begin);
    broken_ += broken_beside(at, true) - broken_beside(at, false);
    active_.erase(at);
  }

  int64_t length_;
  std::span<const Shard> shards_;
  const std::vector<Task>& tasks_;
  std::vector<Event> events_;
  Active active_;
  int64_t broken_ = 0;
};

}  // namespace

std::string text_of(const Shard& shard) {
  return format("document {}, tokens {}, home {}, row {}", shard.doc, text_of(shard.tokens), shard.home,
                shard.row);
}

std::string text_of(const Task& task) {
  return format("document {}, queries {}, keys {}, server {}", task.doc, text_of(task.q), text_of(task.kv),
                task.server);
}

void validate(const Layout& layout) {
  DISTCA_CHECK(layout.ranks >= 1, "a layout over {} ranks", layout.ranks);
  check_documents_covered(layout);
  check_rows_apart(layout);
}

void validate_coverage(const Layout& layout, const std::vector<Task>& tasks) {
  std::vector<std::vector<size_t>> of_document(layout.doc_lengths.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    DISTCA_CHECK(tasks[i].doc >= 0 && tasks[i].doc < static_cast<int64_t>(of_document.size()),
                 "task {} ({}): there are {} documents", i, text_of(tasks[i]), of_document.size());
    of_document[static_cast<size_t>(tasks[i].doc)].push_back(i);
  }
  const std::vector<size_t> first = first_shards(layout);
  for (size_t doc = 0; doc < of_document.size(); ++doc) {
    const std::span<const Shard> shards{layout.shards.data() + first[doc], first[doc + 1] - first[doc]};
    try {
      DocumentCoverage(layout.doc_lengths[doc], shards, tasks).check(of_document[doc]);
    } catch (const Error& error) {
      throw Error(format("document {}: {}", doc, error.what()));
    }
  }
}

}  // namespace distca
