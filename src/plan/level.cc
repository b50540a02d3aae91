#include "plan/level.h"

#include <algorithm>

namespace distca {
namespace {

/// Without a tolerance, a server that is above the others by no more than a tile, or this share of what it
/// has, is left there.
constexpr double kLittle = 0.0005;

/// One way to take part of a task away.
struct Split {
  Task moved;
  Task rest[2];
  int rests = 0;
};

/// Bottom rows [top, end) against keys [begin, right). The rest stays: the rows above, and the keys to the
/// right.
Split split_at(const Task& task, int64_t top, int64_t right) {
  const bool diagonal = task.kv.end == task.q.end;
  Split split{{task.doc, {top, task.q.end}, {task.kv.begin, right}, task.server}, {}, 0};
  if (top > task.q.begin) {
    split.rest[split.rests++] = {
        task.doc, {task.q.begin, top}, {task.kv.begin, diagonal ? top : task.kv.end}, task.server};
  }
  if (right < task.kv.end) {
    split.rest[split.rests++] = {task.doc, {top, task.q.end}, {right, task.kv.end}, task.server};
  }
  return split;
}

class Leveler {
 public:
  Leveler(Draft& draft, std::vector<Task>& tasks)
      : draft_(draft), cost_(draft.options().cost), tasks_(tasks), of_server_(draft.servers().size()) {
    for (size_t i = 0; i < tasks.size(); ++i) of_server_[static_cast<size_t>(tasks[i].server)].push_back(i);
  }

  void run() {
    std::vector<bool> stuck(of_server_.size(), false);
    const size_t steps = 8 * of_server_.size() + 64;
    for (size_t step = 0; step < steps; ++step) {
      draft_.refresh_capacity();
      const int32_t from = most(stuck, 1), to = most({}, -1);
      if (from < 0 || to < 0) return;
      if (!relieve(from, to)) stuck[static_cast<size_t>(from)] = true;
    }
  }

 private:
  int64_t over(int32_t server) const {
    if (draft_.options().tolerance > 0) return draft_.excess(server, 0);
    const auto little = static_cast<int64_t>(kLittle * draft_.best_finish());
    return draft_.excess(server, 0) - std::min(cost_.of_tiles(1), little);
  }

  /// The server with the largest excess (sign 1) or room (sign -1) above 0, or -1.
  int32_t most(const std::vector<bool>& skip, int sign) const {
    int32_t best = -1;
    int64_t largest = 0;
    for (int32_t i = 0; i < static_cast<int32_t>(of_server_.size()); ++i) {
      const int64_t value = sign > 0 ? over(i) : draft_.room(i, 0);
      if (value <= largest || (!skip.empty() && skip[static_cast<size_t>(i)])) continue;
      largest = value;
      best = i;
    }
    return best;
  }

  bool relieve(int32_t from, int32_t to) {
    const int64_t want = draft_.excess(from, 0), room = -draft_.excess(to, 0);
    best_moved_ = 0;
    for (const size_t i : of_server_[static_cast<size_t>(from)]) {
      const Task& task = tasks_[i];
      offer(i, split_at(task, task.q.begin, task.kv.end), want, room, to);
      offer_rows(i, task.kv.end, want, room, to);
      const int64_t first_column = grid_after(task.kv.begin);
      if (first_column < task.kv.end && first_column <= task.q.begin)
        offer_rows(i, first_column, want, room, to);
      offer_columns(i, want, room, to);
    }
    if (best_moved_ == 0) return false;
    apply(to);
    return true;
  }

  static int64_t grid_after(int64_t position) { return (position / kTileRows + 1) * kTileRows; }

  /// The lowest rows, as many as come closest to `want`, against keys up to `right`.
  void offer_rows(size_t i, int64_t right, int64_t want, int64_t room, int32_t to) {
    const Task task = tasks_[i];
    // Cuts lie between tiles 1 and `count` of the grid inside the task's rows.
    const int64_t first = grid_after(task.q.begin);
    int64_t low = 0, high = task.q.end > first ? (task.q.end - 1 - first) / kTileRows + 1 : 0;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (moved_load(split_at(task, first + middle * kTileRows, right)) > want) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    for (int64_t at = low - 1; at <= low; ++at) {
      const int64_t top = first + at * kTileRows;
      if (at >= 0 && top < task.q.end) offer(i, split_at(task, top, right), want, room, to);
    }
  }

  /// All rows against the first keys, as many as come closest to `want`.
  void offer_columns(size_t i, int64_t want, int64_t room, int32_t to) {
    const Task task = tasks_[i];
    const int64_t first = grid_after(task.kv.begin), last = std::min(task.kv.end - 1, task.q.begin);
    if (first > last) return;
    int64_t low = 0, high = (last - first) / kTileRows + 1;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (moved_load(split_at(task, task.q.begin, first + middle * kTileRows)) < want) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    for (int64_t at = low - 1; at <= low; ++at) {
      const int64_t right = first + at * kTileRows;
      if (at >= 0 && right <= last) offer(i, split_at(task, task.q.begin, right), want, room, to);
    }
  }

  int64_t moved_load(const Split& split) const { return cost_(split.moved); }

  /// Keeps the split if it is better: enough for `want` in the fewest rows and keys, else the most.
  void offer(size_t i, const Split& split, int64_t want, int64_t room, int32_t to) {
    const int64_t moved = moved_load(split);
    if (moved <= 0 || moved > std::max(room, best_allowed(want, room))) return;
    if (split.moved.kv.size() > draft_.key_room(to)) return;
    if (draft_.options().byte_limit > 0 && !ships_within_limit(split.moved, to)) return;
    const int64_t price = 4 * split.moved.q.size() + split.moved.kv.size();
    const bool enough = moved >= want, best_enough = best_moved_ >= want;
    const bool better = best_moved_ == 0 || (enough && !best_enough) ||
                        (enough == best_enough && (enough ? price < best_price_ : moved > best_moved_));
    if (!better) return;
    best_ = split;
    best_task_ = i;
    best_moved_ = moved;
    best_price_ = price;
  }

  /// Whether home and the recipient may ship all of what the task needs.
  bool ships_within_limit(const Task& task, int32_t to) const {
    const int64_t bytes = bytes_out(task) + bytes_back(task), limit = draft_.options().byte_limit;
    return draft_.busy(to) + bytes <= limit && draft_.busy(home_of(task)) + bytes <= limit;
  }
  int64_t bytes_out(const Task& task) const {
    return task.q.size() * draft_.options().bytes.q + task.kv.size() * draft_.options().bytes.kv();
  }
  int64_t bytes_back(const Task& task) const {
    return task.q.size() * (draft_.options().bytes.o + draft_.options().bytes.lse);
  }

  int32_t home_of(const Task& task) const {
    const std::vector<Shard>& shards = draft_.layout().shards;
    const auto after =
        std::upper_bound(shards.begin(), shards.end(), task, [](const Task& t, const Shard& s) {
          return t.doc != s.doc ? t.doc < s.doc : t.q.begin < s.tokens.begin;
        });
    return (after - 1)->home;
  }

  /// Without room for all of it a move still helps if the recipient ends less far above than the donor was.
  static int64_t best_allowed(int64_t want, int64_t room) { return room + want - 1; }

  void apply(int32_t to) {
    DraftServer& from = draft_.server(best_.moved.server);
    DraftServer& target = draft_.server(to);
    const Task before = tasks_[best_task_];
    std::vector<size_t>& list = of_server_[static_cast<size_t>(before.server)];
    from.load -= cost_(before);
    from.raw -= pairs(before);
    for (int k = 0; k < best_.rests; ++k) {
      from.load += cost_(best_.rest[k]);
      from.raw += pairs(best_.rest[k]);
      list.push_back(tasks_.size());
      tasks_.push_back(best_.rest[k]);
    }
    list.erase(std::find(list.begin(), list.end(), best_task_));
    best_.moved.server = to;
    tasks_[best_task_] = best_.moved;
    of_server_[static_cast<size_t>(to)].push_back(best_task_);
    target.load += cost_(best_.moved);
    target.raw += pairs(best_.moved);
    target.kv_rows += best_.moved.kv.size();
    if (draft_.options().byte_limit == 0) return;
    DraftServer& home = draft_.server(home_of(best_.moved));
    home.send += bytes_out(best_.moved);
    home.receive += bytes_back(best_.moved);
    target.receive += bytes_out(best_.moved);
    target.send += bytes_back(best_.moved);
  }

  Draft& draft_;
  const TaskCost& cost_;
  std::vector<Task>& tasks_;
  std::vector<std::vector<size_t>> of_server_;
  Split best_;
  size_t best_task_ = 0;
  int64_t best_moved_ = 0, best_price_ = 0;
};

}  // namespace

void level(Draft& draft, std::vector<Task>& tasks) {
  const auto all_fit = [&] {
    draft.refresh_capacity();
    for (int32_t i = 0; i < static_cast<int32_t>(draft.servers().size()); ++i) {
      if (draft.excess(i, 0) > 0) return false;
    }
    return true;
  };
  if (all_fit()) return;
  Leveler leveler(draft, tasks);
  leveler.run();
  if (all_fit()) return;
  draft.let_causal_pairs_be();
  leveler.run();
}

}  // namespace distca
