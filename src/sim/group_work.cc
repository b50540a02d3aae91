#include "sim/group_work.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "sim/step_costs.h"

namespace distca {
namespace {

/// Piece i and piece 2·degree - 1 - i belong to rank i.
size_t rank_of_piece(int64_t piece, int64_t degree) {
  return static_cast<size_t>(std::min(piece, 2 * degree - 1 - piece));
}

/// One run of tokens through the documents, cut into 2·degree pieces.
class SequenceCutter {
 public:
  SequenceCutter(int64_t tokens, int64_t degree, double startup_keys, std::vector<double>& attention)
      : tokens_(tokens), degree_(degree), startup_keys_(startup_keys), attention_(attention) {}

  /// The run's next document.
  void add(int64_t length) {
    for (int64_t begin = 0; begin < length;) {
      const int64_t end = std::min(length, begin + piece_end() - at_);
      attention_[rank_of_piece(piece_, degree_)] += attention_work(begin, end, startup_keys_);
      at_ += end - begin;
      begin = end;
      while (piece_ < 2 * degree_ - 1 && at_ == piece_end()) ++piece_;
    }
  }

 private:
  int64_t piece_end() const { return tokens_ * (piece_ + 1) / (2 * degree_); }

  int64_t tokens_, degree_;
  double startup_keys_;
  std::vector<double>& attention_;
  int64_t at_ = 0, piece_ = 0;
};

GroupWork empty_group(int64_t tokens, int64_t degree) {
  GroupWork group;
  group.tokens = static_cast<double>(tokens) / static_cast<double>(degree);
  group.attention.assign(static_cast<size_t>(degree), 0);
  group.gathered = group.tokens * static_cast<double>(degree - 1);
  return group;
}

}  // namespace

double GroupWork::busiest() const {
  return attention.empty() ? 0 : *std::max_element(attention.begin(), attention.end());
}

std::vector<GroupWork> cut_by_sequence(const std::vector<int64_t>& documents, int64_t groups, int64_t degree,
                                       double startup_keys) {
  int64_t total = 0;
  for (const int64_t length : documents) total += length;
  std::vector<GroupWork> result;
  size_t document = 0;
  int64_t taken = 0;  // of that document
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t tokens = total * (g + 1) / groups - total * g / groups;
    GroupWork& group = result.emplace_back(empty_group(tokens, degree));
    SequenceCutter cutter(tokens, degree, startup_keys, group.attention);
    for (int64_t room = tokens; room > 0;) {
      const int64_t length = std::min(room, documents[document] - taken);
      cutter.add(length);
      room -= length;
      taken += length;
      if (taken == documents[document]) ++document, taken = 0;
    }
  }
  return result;
}

std::vector<GroupWork> cut_by_document(const std::vector<int64_t>& documents, int64_t groups, int64_t degree,
                                       double startup_keys) {
  std::vector<int64_t> sorted = documents;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  using Bin = std::pair<double, size_t>;
  std::priority_queue<Bin, std::vector<Bin>, std::greater<>> bins;
  for (int64_t g = 0; g < groups; ++g) bins.push({0, static_cast<size_t>(g)});
  std::vector<int64_t> tokens(static_cast<size_t>(groups), 0);
  std::vector<GroupWork> result(static_cast<size_t>(groups), empty_group(0, degree));
  for (const int64_t length : sorted) {
    const auto [weight, bin] = bins.top();
    bins.pop();
    const auto rows = static_cast<double>(length);
    bins.push({weight + rows + rows * rows / 65536, bin});
    tokens[bin] += length;
    SequenceCutter(length, degree, startup_keys, result[bin].attention).add(length);
  }
  for (size_t g = 0; g < result.size(); ++g) {
    std::vector<double> attention = std::move(result[g].attention);
    result[g] = empty_group(tokens[g], degree);
    result[g].attention = std::move(attention);
  }
  return result;
}

double whole_attention(const std::vector<int64_t>& documents, double startup_keys) {
  double sum = 0;
  for (const int64_t length : documents) sum += attention_work(0, length, startup_keys);
  return sum;
}

}  // namespace distca
