#include <tuple>

#include "base/check.h"
#include "plan/validate.h"

namespace distca {
namespace {

/// `count` rows from `row` on hold the tokens of `doc` from `position` on.
struct Held {
  int64_t row, count;
  int32_t doc;
  int64_t position;
};

/// Rows of a buffer in order, without overlap.
using Buffer = std::vector<Held>;

/// What each rank's token buffer holds.
std::vector<Buffer> home_buffers(const Layout& layout) {
  std::vector<Buffer> homes(static_cast<size_t>(layout.ranks));
  for (const Shard& shard : layout.shards) {
    homes[static_cast<size_t>(shard.home)].push_back(
        {shard.row, shard.tokens.size(), shard.doc, shard.tokens.begin});
  }
  for (Buffer& home : homes) {
    std::sort(home.begin(), home.end(), [](const Held& a, const Held& b) { return a.row < b.row; });
  }
  return homes;
}

/// What tasks say that their server's buffer holds: runs that may overlap where they agree. Throws unless
/// they fill rows [0, rows) and are ordered by (document, position).
Buffer agreed(Buffer said, int64_t rows, const std::string& what) {
  std::sort(said.begin(), said.end(),
            [](const Held& a, const Held& b) { return std::tie(a.row, a.count) < std::tie(b.row, b.count); });
  Buffer buffer;
  int64_t end = 0;
  for (const Held& run : said) {
    DISTCA_CHECK(run.row >= 0 && run.row <= end, "{}: rows [{}, {}) are read by no task", what, end, run.row);
    if (!buffer.empty()) {
      const Held& last = buffer.back();
      const int64_t shift = run.row - last.row;
      const bool same = run.doc == last.doc && run.position == last.position + shift;
      const bool after =
          run.row == end && std::pair(run.doc, run.position) > std::pair(last.doc, last.position);
      DISTCA_CHECK(same || after, "{}: tasks disagree about what stands in row {}", what, run.row);
      if (same) {
        buffer.back().count = std::max(last.count, shift + run.count);
        end = std::max(end, run.row + run.count);
        continue;
      }
    }
    buffer.push_back(run);
    end = std::max(end, run.row + run.count);
  }
  DISTCA_CHECK(end == rows, "{}: tasks read rows [0, {}), {} are stated", what, end, rows);
  return buffer;
}

/// Throws unless rows [run.home_row, + count) of the home and [run.server_row, + count) of the server hold
/// the same.
void check_run(const RowRun& run, const Buffer& home, const Buffer& server, const std::string& what) {
  const auto at = [&](const Buffer& buffer, int64_t row) {
    const auto after = std::upper_bound(buffer.begin(), buffer.end(), row,
                                        [](int64_t r, const Held& held) { return r < held.row; });
    const bool found = after != buffer.begin() && row < (after - 1)->row + (after - 1)->count;
    DISTCA_CHECK(found, "{}: row {} holds no token", what, row);
    return after - 1;
  };
  for (int64_t done = 0; done < run.count;) {
    const auto from = at(home, run.home_row + done), to = at(server, run.server_row + done);
    const int64_t from_shift = run.home_row + done - from->row, to_shift = run.server_row + done - to->row;
    const int64_t from_position = from->position + from_shift, to_position = to->position + to_shift;
    DISTCA_CHECK(from->doc == to->doc && from_position == to_position,
                 "{}: home row {} holds position {} of document {}, server row {} is for position {} of {}",
                 what, run.home_row + done, from_position, from->doc, run.server_row + done, to_position,
                 to->doc);
    done += std::min(from->count - from_shift, to->count - to_shift);
  }
}

class ExchangeCheck {
 public:
  ExchangeCheck(const Exchange& exchange, const Plan& plan)
      : exchange_(exchange), plan_(plan), homes_(home_buffers(plan.layout)) {}

  void run() {
    DISTCA_CHECK(exchange_.servers.size() == static_cast<size_t>(plan_.servers),
                 "the tables are for {} servers, the plan has {}", exchange_.servers.size(), plan_.servers);
    check_tasks();
    check_routes();
    for (size_t server = 0; server < exchange_.servers.size(); ++server) {
      check_filled(q_runs_[server], exchange_.servers[server].q_rows,
                   format("server {}'s query rows", server));
      check_filled(kv_runs_[server], exchange_.servers[server].kv_rows,
                   format("server {}'s key rows", server));
    }
  }

 private:
  void check_tasks() {
    size_t next = 0;
    for (size_t server = 0; server < exchange_.servers.size(); ++server) {
      const ServerRows& rows = exchange_.servers[server];
      Buffer q, kv;
      int64_t o_rows = 0;
      for (size_t i = 0; i < rows.tasks.size(); ++i, ++next) {
        const RowTask& row_task = rows.tasks[i];
        const std::string what = format("server {}, task {}", server, i);
        DISTCA_CHECK(next < plan_.tasks.size() && plan_.tasks[next].server == static_cast<int32_t>(server),
                     "{}: the plan has no such task", what);
        const Task& task = plan_.tasks[next];
        DISTCA_CHECK(row_task.q_pos == task.q.begin && row_task.q_len == task.q.size() &&
                         row_task.kv_pos == task.kv.begin && row_task.kv_len == task.kv.size(),
                     "{}: positions [{}, + {}) × [{}, + {}) are not those of the plan ({})", what,
                     row_task.q_pos, row_task.q_len, row_task.kv_pos, row_task.kv_len, text_of(task));
        DISTCA_CHECK(row_task.o_row == o_rows, "{}: its output starts at row {}, not {}", what,
                     row_task.o_row, o_rows);
        o_rows += row_task.q_len;
        q.push_back({row_task.q_row, row_task.q_len, task.doc, row_task.q_pos});
        kv.push_back({row_task.kv_row, row_task.kv_len, task.doc, row_task.kv_pos});
      }
      DISTCA_CHECK(rows.o_rows == o_rows, "server {}: its tasks write {} output rows, {} are stated", server,
                   o_rows, rows.o_rows);
      q_.push_back(agreed(std::move(q), rows.q_rows, format("server {}'s query rows", server)));
      kv_.push_back(agreed(std::move(kv), rows.kv_rows, format("server {}'s key rows", server)));
    }
    DISTCA_CHECK(next == plan_.tasks.size(), "the tables hold {} tasks, the plan {}", next,
                 plan_.tasks.size());
  }

  void check_routes() {
    q_runs_.resize(exchange_.servers.size());
    kv_runs_.resize(exchange_.servers.size());
    const Route* before = nullptr;
    for (const Route& route : exchange_.routes) {
      const std::string what = format("route {} -> {}", route.home, route.server);
      DISTCA_CHECK(route.home >= 0 && route.home < plan_.layout.ranks && route.server >= 0 &&
                       route.server < plan_.servers,
                   "{}: there are {} homes and {} servers", what, plan_.layout.ranks, plan_.servers);
      DISTCA_CHECK(!before || std::pair(before->home, before->server) < std::pair(route.home, route.server),
                   "{}: routes go by (home, server), this one follows {} -> {}", what,
                   before ? before->home : 0, before ? before->server : 0);
      const auto server = static_cast<size_t>(route.server);
      check_runs(route, route.q, route.q_rows, q_[server], q_runs_[server], what + ", queries");
      check_runs(route, route.kv, route.kv_rows, kv_[server], kv_runs_[server], what + ", keys");
      before = &route;
    }
  }

  void check_runs(const Route& route, const std::vector<RowRun>& runs, int64_t rows, const Buffer& server,
                  std::vector<RowRun>& all, const std::string& what) {
    int64_t total = 0, end = 0;
    for (const RowRun& run : runs) {
      DISTCA_CHECK(run.count > 0 && run.server_row >= end, "{}: run of {} rows to row {} after row {}", what,
                   run.count, run.server_row, end);
      end = run.server_row + run.count;
      check_run(run, homes_[static_cast<size_t>(route.home)], server, what);
      total += run.count;
      all.push_back(run);
    }
    DISTCA_CHECK(total == rows, "{}: its runs hold {} rows, {} are stated", what, total, rows);
  }

  static void check_filled(std::vector<RowRun>& runs, int64_t rows, const std::string& what) {
    std::sort(runs.begin(), runs.end(),
              [](const RowRun& a, const RowRun& b) { return a.server_row < b.server_row; });
    int64_t end = 0;
    for (const RowRun& run : runs) {
      DISTCA_CHECK(run.server_row <= end, "{}: rows [{}, {}) are sent by no home", what, end, run.server_row);
      DISTCA_CHECK(run.server_row == end, "{}: row {} is sent twice", what, run.server_row);
      end += run.count;
    }
    DISTCA_CHECK(end == rows, "{}: {} are sent, {} are stated", what, end, rows);
  }

  const Exchange& exchange_;
  const Plan& plan_;
  std::vector<Buffer> homes_, q_, kv_;
  std::vector<std::vector<RowRun>> q_runs_, kv_runs_;  // received, by server
};

}  // namespace

void validate(const Exchange& exchange, const Plan& plan) {
  ExchangeCheck(exchange, plan).run();
}

}  // namespace distca
