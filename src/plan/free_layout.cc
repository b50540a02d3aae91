#include "plan/free_layout.h"

#include <cmath>
#include <tuple>

#include "plan/finish.h"
#include "plan/scheduler.h"
#include "plan/traffic.h"

namespace distca {
namespace {

/// Documents times ranks above which fewer layouts are tried.
constexpr int64_t kLargeBatch = 20'000'000;

struct Part {
  int32_t doc = 0;
  Span tokens;

  int64_t load() const { return padded_pairs(Task{doc, tokens, {0, tokens.end}, 0}); }
};

struct Bin {
  double target = 0;  // load
  int64_t tokens = 0, load = 0;
  std::vector<Part> parts;

  void add(const Part& part) {
    tokens += part.tokens.size();
    load += part.load();
    parts.push_back(part);
  }
  void remove(size_t i) {
    tokens -= parts[i].tokens.size();
    load -= parts[i].load();
    parts.erase(parts.begin() + static_cast<int64_t>(i));
  }
};

class FreeLayout {
 public:
  FreeLayout(const std::vector<int64_t>& lengths, int32_t ranks, const PlanOptions& options,
             const FreeLayoutOptions& free)
      : lengths_(lengths), free_(free), bins_(static_cast<size_t>(ranks)) {
    int64_t total = 0;
    for (size_t doc = 0; doc < lengths.size(); ++doc) {
      tokens_ += lengths[doc];
      total += whole(static_cast<int32_t>(doc)).load();
    }
    mean_tokens_ = static_cast<double>(tokens_) / ranks;
    equal_ranks_ = options.speeds.empty() && options.ci.empty();
    set_targets(total, options);
  }

  Layout run() {
    std::vector<Part> pieces, rest;
    cut_long_documents(pieces, rest);
    std::vector<Part> parts;
    for (size_t doc = 0; doc < lengths_.size(); ++doc) {
      if (lengths_[doc] > 0) parts.push_back(whole(static_cast<int32_t>(doc)));
    }
    place(std::move(parts));
    even_tokens();
    if (equal_ranks_) bring_pieces_together();
    return layout();
  }

 private:
  Part whole(int32_t doc) const { return {doc, {0, lengths_[static_cast<size_t>(doc)]}}; }

  /// Loads in proportion to the ranks' shares.
  void set_targets(int64_t total, const PlanOptions& options) {
    const auto ranks = static_cast<int32_t>(bins_.size());
    const FinishTimes times = finish_times(total, ranks + options.dedicated, options.speeds, options.ci, 0);
    double sum = 0;
    for (int32_t r = 0; r < ranks; ++r) sum += static_cast<double>(times.capacity[static_cast<size_t>(r)]);
    for (size_t r = 0; r < bins_.size(); ++r) {
      const double share = sum > 0 ? static_cast<double>(times.capacity[r]) / sum : 1.0 / ranks;
      bins_[r].target = share * static_cast<double>(total);
    }
    mean_load_ = static_cast<double>(total) / ranks;
  }

  /// Rows of a piece that ends at `end`, with which a rank filled up with tokens of `density` pairs each has
  /// its mean load: n·(end - density) - n²/2 = load - density·tokens.
  double piece_rows(double end, double density) const {
    const double load = (mean_load_ - density * mean_tokens_) * free_.piece_share, slope = end - density;
    const double root = slope * slope - 2 * load;
    return root <= 0 ? end : slope - std::sqrt(root);
  }

  /// Cuts documents from the tail into pieces of one rank's load each, given how light the shortest documents
  /// are that fill those ranks up, which depends on how many pieces there are: a few rounds find both.
  void cut_long_documents(std::vector<Part>& pieces, std::vector<Part>& rest) {
    double& density = density_;
    for (int round = 0; round < 6; ++round) {
      pieces.clear();
      rest.clear();
      for (size_t doc = 0; doc < lengths_.size(); ++doc)
        cut(static_cast<int32_t>(doc), density, pieces, rest);
      std::sort(rest.begin(), rest.end(), [](const Part& a, const Part& b) {
        return a.tokens.end != b.tokens.end ? a.tokens.end < b.tokens.end : a.doc < b.doc;
      });
      density = filler_density(pieces, rest);
    }
  }

  void cut(int32_t doc, double density, std::vector<Part>& pieces, std::vector<Part>& rest) const {
    int64_t end = lengths_[static_cast<size_t>(doc)];
    while (end > 0) {
      const double rows = std::min(piece_rows(static_cast<double>(end), density), std::floor(mean_tokens_));
      int64_t begin = (end - static_cast<int64_t>(rows) + kTileRows / 2) / kTileRows * kTileRows;
      if (begin >= end) begin = (end - 1) / kTileRows * kTileRows;
      if (begin <= kTileRows) break;
      pieces.push_back({doc, {begin, end}});
      end = begin;
    }
    if (end > 0) rest.push_back({doc, {0, end}});
  }

  double filler_density(const std::vector<Part>& pieces, const std::vector<Part>& rest) {
    double wanted = 0, tokens = 0, load = 0;
    for (const Part& piece : pieces)
      wanted += std::max(0.0, mean_tokens_ - static_cast<double>(piece.tokens.size()));
    for (const Part& part : rest) {
      if (tokens >= wanted) break;
      light_tokens_ = part.tokens.end;
      tokens += static_cast<double>(part.tokens.size());
      load += static_cast<double>(part.load());
    }
    return tokens > 0 ? load / tokens : 0;
  }

  /// Documents longest first. One goes where it fits tightest: where, with the shortest documents for the
  /// tokens that are left, load doesn't exceed the rank's. If it fits nowhere, its tail is cut to the measure
  /// of the rank that has most room, and the rest waits for its turn. Short documents go where most load is
  /// needed for each token.
  void place(std::vector<Part> parts) {
    const auto shorter = [](const Part& a, const Part& b) {
      return a.tokens.end != b.tokens.end ? a.tokens.end < b.tokens.end : a.doc > b.doc;
    };
    std::make_heap(parts.begin(), parts.end(), shorter);
    while (!parts.empty()) {
      std::pop_heap(parts.begin(), parts.end(), shorter);
      Part part = parts.back();
      parts.pop_back();
      const size_t fit =
          part.tokens.end <= light_tokens_ ? neediest(part, INFINITY) : neediest(part, 0.005 * mean_load_);
      if (fit < bins_.size()) {
        bins_[fit].add(part);
        continue;
      }
      if (part.tokens.end <= light_tokens_) {
        bins_[roomiest()].add(part);
        continue;
      }
      const size_t rank = most_slack();
      if (slack_of(bins_[rank]) < free_.least_piece * mean_load_) {
        const size_t any = neediest(part, INFINITY);
        bins_[any < bins_.size() ? any : roomiest()].add(part);
        continue;
      }
      const int64_t begin = cut_for(bins_[rank], part.tokens.end);
      bins_[rank].add({part.doc, {begin, part.tokens.end}});
      if (begin == 0) continue;
      parts.push_back({part.doc, {0, begin}});
      std::push_heap(parts.begin(), parts.end(), shorter);
    }
  }

  double room_of(const Bin& bin) const { return mean_tokens_ - static_cast<double>(bin.tokens); }

  /// Load that a rank may take beyond that of the short documents which fill it up.
  double slack_of(const Bin& bin) const {
    return bin.target * free_.piece_share - static_cast<double>(bin.load) - density_ * room_of(bin);
  }

  size_t most_slack() const {
    size_t best = 0;
    for (size_t r = 1; r < bins_.size(); ++r) {
      if (slack_of(bins_[r]) > slack_of(bins_[best])) best = r;
    }
    return best;
  }

  /// Where to cut a document that ends at `end` so that its tail fills the rank: n·(end - density) - n²/2 =
  /// slack.
  int64_t cut_for(const Bin& bin, int64_t end) const {
    const double slope = static_cast<double>(end) - density_;
    const double root = slope * slope - 2 * std::max(0.0, slack_of(bin));
    const double rows =
        std::min(root <= 0 ? static_cast<double>(end) : slope - std::sqrt(root), std::max(0.0, room_of(bin)));
    const int64_t begin = (end - static_cast<int64_t>(rows) + kTileRows / 2) / kTileRows * kTileRows;
    return std::clamp<int64_t>(begin, 0, (end - 1) / kTileRows * kTileRows);
  }

  /// The rank that needs most load for each token it still needs, of those with room for the part's tokens
  /// and, but for `overload`, its load; or none.
  size_t neediest(const Part& part, double overload) const {
    size_t best = bins_.size();
    double most = -INFINITY;
    const auto tokens = static_cast<double>(part.tokens.size());
    const double extra = static_cast<double>(part.load()) - density_ * tokens - overload;
    for (size_t r = 0; r < bins_.size(); ++r) {
      const double room = room_of(bins_[r]);
      if (room < tokens || slack_of(bins_[r]) < extra) continue;
      const double need = (bins_[r].target - static_cast<double>(bins_[r].load)) / std::max(1.0, room);
      if (need <= most) continue;
      most = need;
      best = r;
    }
    return best;
  }

  size_t roomiest() const {
    size_t best = 0;
    for (size_t r = 1; r < bins_.size(); ++r) {
      if (bins_[r].tokens < bins_[best].tokens) best = r;
    }
    return best;
  }

  /// Moves documents, and tails of documents, from ranks with too many tokens to ranks with too few.
  void even_tokens() {
    for (size_t step = 0; step < 8 * bins_.size() + 64; ++step) {
      size_t high = 0, low = 0;
      for (size_t r = 0; r < bins_.size(); ++r) {
        if (bins_[r].tokens > bins_[high].tokens) high = r;
        if (bins_[r].tokens < bins_[low].tokens) low = r;
      }
      const double over = static_cast<double>(bins_[high].tokens) - mean_tokens_;
      const double under = mean_tokens_ - static_cast<double>(bins_[low].tokens);
      if (std::max(over, under) <= kTileRows / 2 + 1) return;
      if (!move_tokens(bins_[high], bins_[low], static_cast<int64_t>(std::max(1.0, std::min(over, under)))))
        return;
    }
  }

  /// Moves about `tokens` tokens: the tail of the shortest document that has so many.
  bool move_tokens(Bin& from, Bin& to, int64_t tokens) {
    size_t best = from.parts.size();
    for (size_t i = 0; i < from.parts.size(); ++i) {
      const Span span = from.parts[i].tokens;
      if (span.size() < tokens) continue;
      if (best == from.parts.size() || span.end < from.parts[best].tokens.end) best = i;
    }
    if (best == from.parts.size()) {
      for (size_t i = 0; i < from.parts.size(); ++i) {
        if (best == from.parts.size() || from.parts[i].tokens.size() > from.parts[best].tokens.size())
          best = i;
      }
      if (best == from.parts.size()) return false;
    }
    const Part part = from.parts[best];
    int64_t cut =
        std::max(part.tokens.begin, (part.tokens.end - tokens + kTileRows / 2) / kTileRows * kTileRows);
    if (cut >= part.tokens.end)
      cut = std::max(part.tokens.begin, (part.tokens.end - 1) / kTileRows * kTileRows);
    from.remove(best);
    if (cut > part.tokens.begin) from.add({part.doc, {part.tokens.begin, cut}});
    to.add({part.doc, {cut, part.tokens.end}});
    return true;
  }

  /// Numbers the ranks so that pieces of one document lie on neighbours as far as they can.
  void bring_pieces_together() {
    std::vector<std::pair<Part, size_t>> pieces;
    for (size_t r = 0; r < bins_.size(); ++r) {
      for (const Part& part : bins_[r].parts) {
        if (part.tokens.size() < lengths_[static_cast<size_t>(part.doc)]) pieces.push_back({part, r});
      }
    }
    std::sort(pieces.begin(), pieces.end(), [&](const auto& a, const auto& b) {
      const int64_t a_length = lengths_[static_cast<size_t>(a.first.doc)];
      const int64_t b_length = lengths_[static_cast<size_t>(b.first.doc)];
      return std::tuple(-a_length, a.first.doc, a.first.tokens.begin) <
             std::tuple(-b_length, b.first.doc, b.first.tokens.begin);
    });
    std::vector<bool> placed(bins_.size(), false);
    std::vector<Bin> ordered;
    const auto place = [&](size_t r) {
      if (!placed[r]) ordered.push_back(std::move(bins_[r]));
      placed[r] = true;
    };
    for (const auto& [part, r] : pieces) place(r);
    for (size_t r = 0; r < placed.size(); ++r) place(r);
    bins_ = std::move(ordered);
  }

  Layout layout() {
    Layout layout{lengths_, static_cast<int32_t>(bins_.size()), 1, {}};
    for (size_t r = 0; r < bins_.size(); ++r) {
      std::vector<Part>& parts = bins_[r].parts;
      std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
        return a.doc != b.doc ? a.doc < b.doc : a.tokens.begin < b.tokens.begin;
      });
      int64_t row = 0;
      for (const Part& part : parts) {
        Shard* last = layout.shards.empty() ? nullptr : &layout.shards.back();
        if (row > 0 && last->doc == part.doc && last->tokens.end == part.tokens.begin) {
          last->tokens.end = part.tokens.end;
        } else {
          layout.shards.push_back({part.doc, part.tokens, static_cast<int32_t>(r), row});
        }
        row += part.tokens.size();
      }
      layout.rows = std::max(layout.rows, row);
    }
    std::sort(layout.shards.begin(), layout.shards.end(), [](const Shard& a, const Shard& b) {
      return a.doc != b.doc ? a.doc < b.doc : a.tokens.begin < b.tokens.begin;
    });
    return layout;
  }

  const std::vector<int64_t>& lengths_;
  FreeLayoutOptions free_;
  std::vector<Bin> bins_;
  int64_t tokens_ = 0;
  double mean_tokens_ = 0, mean_load_ = 0;
  bool equal_ranks_ = true;
  int64_t light_tokens_ = 0;
  double density_ = 0;  // pairs a token of the documents that fill ranks up
};

}  // namespace

bool tokens_are_equal(const Layout& layout) {
  const double mean = static_cast<double>(layout.tokens()) / layout.ranks;
  for (const int64_t tokens : layout.tokens_of_ranks()) {
    if (std::abs(static_cast<double>(tokens) - mean) > kTileRows) return false;
  }
  return true;
}

Layout free_layout(const std::vector<int64_t>& doc_lengths, int32_t ranks, const PlanOptions& options,
                   const FreeLayoutOptions& free) {
  return FreeLayout(doc_lengths, ranks, options, free).run();
}

Layout best_free_layout(const std::vector<int64_t>& doc_lengths, int32_t ranks, const PlanOptions& options) {
  PlanOptions greedy = options;
  greedy.search_moves = 0;
  greedy.kv_row_limit = greedy.byte_limit = 0;
  Layout best;
  int64_t least = INT64_MAX;
  const auto offer = [&](Layout layout) {
    const Plan plan = schedule(layout, greedy).plan;
    const int64_t bytes = planned_traffic(plan, make_exchange(plan), options.bytes).total();
    if (bytes >= least) return;
    least = bytes;
    best = std::move(layout);
  };
  const bool large = static_cast<int64_t>(doc_lengths.size()) * ranks > kLargeBatch;
  for (const double share : large ? std::vector<double>{1} : std::vector<double>{1, 1.015, 1.03, 0.97}) {
    for (const double least_piece : {0.05, 0.1, 0.3}) {
      offer(free_layout(doc_lengths, ranks, options, {share, least_piece}));
    }
  }
  return best;
}

}  // namespace distca
