#include "attend/flash_arguments.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "base/check.h"

namespace distca {
namespace {

/// Queries [q_begin, q_end) and keys [kv_begin, kv_end) of a task, counted from its first ones.
struct Part {
  int64_t q_begin = 0, q_end = 0, kv_begin = 0, kv_end = 0;
};

class Builder {
 public:
  explicit Builder(int64_t window_left) : window_left_(window_left) {}

  /// Positions: queries before the first key see nothing, those before the last key a triangle, the others
  /// all keys that the window leaves.
  void add(const KernelTask& task) {
    const int64_t kv_end = task.kv_pos + task.kv_len;
    const auto query_at = [&](int64_t position) {
      return std::clamp<int64_t>(position - task.q_pos, 0, task.q_len);
    };
    const bool full = kv_end <= task.q_pos + 1;
    const int64_t seeing = task.kv_len > 0 ? query_at(task.kv_pos) : task.q_len;
    const int64_t below = full ? seeing : std::max(seeing, query_at(kv_end));
    const int64_t end = std::max(below, last_seeing(task, kv_end));
    add_empty(task, 0, seeing);
    if (below > seeing) add_diagonal(task, seeing, below);
    if (end > below) add_full(task, below, end);
    add_empty(task, end, task.q_len);
  }

  FlashArguments finish() {
    for (auto& [kind, sequences] : kinds_) {
      FlashCall call;
      std::tie(call.causal, call.window_left) = kind;
      for (Sequence& sequence : sequences) append(sequence, call);
      result_.calls.push_back(std::move(call));
    }
    return std::move(result_);
  }

 private:
  struct Sequence {
    std::vector<int64_t> q_rows, o_rows;
    int64_t kv_row = 0, kv_len = 0;
  };
  using Kind = std::tuple<bool, int64_t>;  // causal, window_left

  bool windowed() const { return window_left_ != kNoWindow; }

  /// One past the last query that the window leaves a key.
  int64_t last_seeing(const KernelTask& task, int64_t kv_end) const {
    if (!windowed() || window_left_ >= task.q_pos + task.q_len) return task.q_len;
    return std::clamp<int64_t>(kv_end + window_left_ - task.q_pos, 0, task.q_len);
  }

  /// The first key that query `query` sees.
  int64_t first_key(const KernelTask& task, int64_t query) const {
    return visible_keys(task, query, window_left_).begin;
  }

  void add_empty(const KernelTask& task, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) result_.empty_o_rows.push_back(task.o_row + i);
  }

  void add_diagonal(const KernelTask& task, int64_t begin, int64_t end) {
    const int64_t keys = task.q_pos + end - task.kv_pos;  // up to the last query's own
    const bool useful = windowed() && window_left_ < keys;
    append_part(task, {begin, end, first_key(task, begin), keys}, {true, useful ? window_left_ : -1}, false);
  }

  void add_full(const KernelTask& task, int64_t begin, int64_t end) {
    const int64_t first = first_key(task, begin);
    int64_t window = -1;
    // Whether the window cuts: the last query doesn't see the first key that the first query sees.
    if (windowed() && first_key(task, end - 1) > first) {
      window = window_left_ - (task.q_pos + end - (task.kv_pos + task.kv_len));
    }
    append_part(task, {begin, end, first, task.kv_len}, {false, window}, window < 0);
  }

  void append_part(const KernelTask& task, const Part& part, const Kind& kind, bool share) {
    std::vector<Sequence>& sequences = kinds_[kind];
    const int64_t kv_row = task.kv_row + part.kv_begin, kv_len = part.kv_end - part.kv_begin;
    size_t place = sequences.size();
    if (share) place = shared_.try_emplace({kv_row, kv_len}, place).first->second;
    if (place == sequences.size()) sequences.push_back({{}, {}, kv_row, kv_len});
    for (int64_t i = part.q_begin; i < part.q_end; ++i) {
      sequences[place].q_rows.push_back(task.q_row + i);
      sequences[place].o_rows.push_back(task.o_row + i);
    }
  }

  static void append(const Sequence& sequence, FlashCall& call) {
    call.q_rows.insert(call.q_rows.end(), sequence.q_rows.begin(), sequence.q_rows.end());
    call.o_rows.insert(call.o_rows.end(), sequence.o_rows.begin(), sequence.o_rows.end());
    for (int64_t key = 0; key < sequence.kv_len; ++key) call.k_rows.push_back(sequence.kv_row + key);
    constexpr auto kMost = static_cast<size_t>(std::numeric_limits<int32_t>::max());
    DISTCA_CHECK(
        call.q_rows.size() <= kMost && call.k_rows.size() <= kMost,
        "a flash-attention call over {} query rows and {} key rows: it takes at most 2^31 - 1 of each; "
        "use more ranks or smaller nano-batches",
        call.q_rows.size(), call.k_rows.size());
    call.cu_seqlens_q.push_back(static_cast<int32_t>(call.q_rows.size()));
    call.cu_seqlens_k.push_back(static_cast<int32_t>(call.k_rows.size()));
    call.max_q = std::max(call.max_q, static_cast<int64_t>(sequence.q_rows.size()));
    call.max_k = std::max(call.max_k, sequence.kv_len);
  }

  int64_t window_left_;
  std::map<Kind, std::vector<Sequence>> kinds_;
  std::map<std::pair<int64_t, int64_t>, size_t> shared_;  // (kv_row, kv_len) of unmasked sequences
  FlashArguments result_;
};

}  // namespace

FlashArguments make_flash_arguments(std::span<const KernelTask> tasks, int64_t window_left) {
  Builder builder(window_left);
  for (const KernelTask& task : tasks) builder.add(task);
  return builder.finish();
}

bool consecutive(std::span<const int64_t> rows) {
  for (size_t i = 1; i < rows.size(); ++i) {
    if (rows[i] != rows[i - 1] + 1) return false;
  }
  return true;
}

}  // namespace distca
