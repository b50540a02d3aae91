#include "plan/carve.h"

#include <cmath>
#include <numeric>

namespace distca {
namespace {

/// How many of a donor's largest regions are looked at before smaller ones.
constexpr size_t kFirstRegions = 6;

/// A flow that is so much more than any region's piece with most pairs per byte is cut in two ways.
constexpr double kMuch = 1.1;

/// A way that costs so much more than any could isn't bettered.
constexpr double kLittleMore = 1.03;

int64_t grid_down(int64_t position) {
  return position / kTileRows * kTileRows;
}
int64_t grid_nearest(int64_t position) {
  return grid_down(position + kTileRows / 2);
}

/// The whole region as a piece.
Cutout whole(const Region& region, int32_t to) {
  return {region.shard, to, region.top, region.bottom, region.left, region.bottom};
}

/// One way to take a flow from a region.
struct Cut {
  size_t region = 0;
  Cutout piece;
  int64_t pairs = 0, bytes = 0;
};

/// Carves one donor. With D the region's keys and rows, a piece of h rows and w keys has h·w pairs, less the
/// clipped corner (h + w - D)² / 2 where h + w > D. With costs a per row and b per key, and rho = a / b:
///   not clipped: h = sqrt(F / rho), w = F / h;
///   clipped:     D - h = rho · v and D - w = v with v = sqrt((D² - 2F) / (1 + rho²)), by Lagrange.
/// Pairs per byte are most at v = D · x with x = (1 + rho - sqrt(2 · rho)) / (1 + rho²): the rest of a region
/// costs more than it is worth while others are whole.
class DonorCarver {
 public:
  DonorCarver(const RowBytes& bytes, const HeldKeys& held, int64_t slack, std::span<const Region> regions,
              Carving& carving)
      : bytes_(bytes),
        held_(held),
        slack_(slack),
        rho_(static_cast<double>(bytes.q + bytes.o + bytes.lse) / static_cast<double>(bytes.kv())),
        gap_((1 + rho_ - std::sqrt(2 * rho_)) / (1 + rho_ * rho_)),
        all_(regions),
        carving_(carving),
        regions_(carving.rest) {
    carving_.clear();
    pulled_ = std::min(kFirstRegions, all_.size());
    regions_.assign(all_.begin(), all_.begin() + static_cast<int64_t>(pulled_));
  }

  /// In as few cuts as regions allow; where that uses one up, also by most pairs per byte, if that is
  /// cheaper.
  void take_flow(const Flow& flow, bool leaves_much) {
    const double keys = most_keys(), largest = best_rate_pairs(keys, keys);
    if (!leaves_much || static_cast<double>(flow.pairs) <= kMuch * largest) {
      cut_flow(flow, false);
      return;
    }
    const State before = state();
    const std::vector<Region> before_regions = regions_;
    const int64_t left = cut_flow(flow, false);
    const State few = state();
    const double least = static_cast<double>(flow.pairs - left) / largest * best_rate_bytes(keys);
    if (static_cast<double>(few.bytes - before.bytes) <= kLittleMore * least) return;
    const std::vector<Region> few_regions = regions_;
    const std::vector<Cutout> few_pieces(carving_.pieces.begin() + static_cast<int64_t>(before.pieces),
                                         carving_.pieces.end());
    go_back(before, before_regions, {});
    const int64_t other_left = cut_flow(flow, true);
    const bool cheaper = carving_.bytes < few.bytes && other_left <= std::max(left, least_flow());
    if (!cheaper) go_back({before.pieces, few.pulled, few.bytes}, few_regions, few_pieces);
  }

  void take_everything(const Flow& flow) {
    pull(all_.size());
    int64_t keys = flow.max_keys;
    std::vector<Region> left;
    for (const Region& region : regions_) {
      if (region.keys() > keys) {
        left.push_back(region);
        continue;
      }
      keys -= region.keys();
      add_piece(whole(region, flow.to));
    }
    regions_ = std::move(left);
  }

  void finish() {
    carving_.touched = pulled_;
    for (size_t i = 0; i < pulled_; ++i) {
      const Region& region = all_[i];
      if (region.top == 0) continue;
      int64_t needed = region.top;
      for (const Region& left : regions_) {
        if (left.shard == region.shard) needed = std::min(needed, left.left);
      }
      if (needed == 0) continue;
      carving_.savings.push_back({region.shard, needed});
      carving_.bytes -= needed * bytes_.kv();
    }
  }

 private:
  struct State {
    size_t pieces = 0, pulled = 0;
    int64_t bytes = 0;
  };

  /// Less isn't cut.
  int64_t least_flow() const { return std::max<int64_t>(slack_, kTileRows * kTileRows / 2); }

  State state() const { return {carving_.pieces.size(), pulled_, carving_.bytes}; }

  void go_back(const State& to, const std::vector<Region>& regions, const std::vector<Cutout>& pieces) {
    carving_.pieces.resize(to.pieces);
    carving_.pieces.insert(carving_.pieces.end(), pieces.begin(), pieces.end());
    carving_.bytes = to.bytes;
    pulled_ = to.pulled;
    regions_ = regions;
  }

  void pull(size_t count) {
    for (; pulled_ < std::min(count, all_.size()); ++pulled_) regions_.push_back(all_[pulled_]);
  }

  /// Cuts the flow and returns the pairs that were not to be had.
  int64_t cut_flow(const Flow& flow, bool by_rate) {
    int64_t left = flow.pairs, keys = flow.max_keys;
    const size_t first = carving_.pieces.size();
    while (left > least_flow() && keys > 0) {
      Cut cut;
      if (!best_cut(flow.to, left, keys, by_rate, cut)) break;
      left -= take(cut, left, keys - cut.piece.keys() >= kTileRows);
      keys = flow.max_keys - keys_taken(first);
      if (by_rate) pull(pulled_ + 1);
    }
    return left;
  }

  /// Pairs of the piece that has most of them for each byte, in a region of so many keys and rows, and its
  /// bytes where there are as many rows.
  double best_rate_pairs(double keys, double rows) const {
    const double all = keys * keys - (keys - rows) * (keys - rows);
    return (all - (1 + rho_ * rho_) * gap_ * gap_ * keys * keys) / 2;
  }
  double best_rate_bytes(double keys) const {
    return keys * (1 + rho_ - (1 + rho_ * rho_) * gap_) * static_cast<double>(bytes_.kv());
  }

  double most_keys() const {
    int64_t most = 0;
    for (const Region& region : regions_) most = std::max(most, region.keys());
    return static_cast<double>(most);
  }

  /// The cheapest cut that takes all of `pairs`; if no region has so many, or `by_rate`, the one that takes a
  /// pair for the fewest bytes.
  bool best_cut(int32_t to, int64_t pairs, int64_t max_keys, bool by_rate, Cut& best) {
    bool found = false, full = false;
    if (regions_.size() < kFirstRegions) pull(pulled_ + kFirstRegions);
    for (size_t i = 0; i < regions_.size(); ++i) consider(i, to, pairs, max_keys, by_rate, best, found, full);
    return found;
  }

  void consider(size_t index, int32_t to, int64_t pairs, int64_t max_keys, bool by_rate, Cut& best,
                bool& found, bool& full) {
    const Region& region = regions_[index];
    const auto offer = [&](const Cutout& piece) {
      if (piece.keys() > max_keys || piece.keys() <= 0 || piece.rows() <= 0) return;
      const Cut cut{index, piece, padded_pairs(piece), bytes_of(piece) - saved_by(region, piece)};
      const bool is_full = !by_rate && cut.pairs >= pairs - std::max(slack_, kTileRows * cut.piece.rows());
      const bool better = !found || (is_full && !full) ||
                          (is_full == full && (full ? cut.bytes < best.bytes
                                                    : static_cast<double>(cut.bytes) * best.pairs <
                                                          static_cast<double>(best.bytes) * cut.pairs));
      if (!better) return;
      best = cut;
      found = true;
      full = is_full;
    };
    const Cutout all = whole(region, to);
    const int64_t region_pairs = padded_pairs(all);
    const auto keys = static_cast<double>(region.keys()), target = static_cast<double>(pairs);
    if (by_rate) {
      const double most = best_rate_pairs(keys, static_cast<double>(region.rows()));
      if (most >= kTileRows * kTileRows && most < target)
        offer(with_rows(region, to, keys - rho_ * gap_ * keys, static_cast<int64_t>(most)));
    }
    if (region_pairs <= pairs + slack_) return offer(all);
    double rows = std::sqrt(target / rho_);
    double right = target / rows;
    if (rows + right > keys) {
      const double v = std::sqrt(std::max(0.0, keys * keys - 2 * target) / (1 + rho_ * rho_));
      rows = keys - rho_ * v;
      right = keys - v;
    }
    if (right > static_cast<double>(max_keys)) {
      // A tile less wide and one higher than would just do, for the grid's sake.
      rows = target / static_cast<double>(std::max(kTileRows, max_keys - kTileRows)) + kTileRows;
    }
    offer(with_rows(region, to, rows, pairs));
    if (held_.spans(region.shard)) offer_rows_at_home(region, to, pairs, offer);
    // Whole rows need no merge.
    if (region.left == 0 && region.keys() <= max_keys) {
      offer(with_rows(region, to, keys - std::sqrt(std::max(0.0, keys * keys - 2 * target)), pairs));
    }
  }

  /// Where the server holds keys anyway, rows against just those; and all rows against the keys that home
  /// then need not fetch.
  template <typename Offer>
  void offer_rows_at_home(const Region& region, int32_t to, int64_t pairs, const Offer& offer) const {
    const int64_t held = std::min(held_.end_at(region.shard, to), region.bottom) - region.left;
    const auto target = static_cast<double>(pairs);
    if (held > 0) offer(with_rows(region, to, target / static_cast<double>(held), pairs));
    if (region.top > region.left) offer(with_rows(region, to, static_cast<double>(region.rows()), pairs));
  }

  /// Bytes of keys that home need not fetch when all of a shard's rows against its first keys go.
  int64_t saved_by(const Region& region, const Cutout& piece) const {
    if (region.left > 0 || region.top == 0 || piece.top > region.top || !held_.spans(region.shard)) return 0;
    const Span whole = held_.shard(region.shard).tokens;
    return region.top > whole.begin || region.bottom < whole.end
               ? 0
               : std::min(piece.right, whole.begin) * bytes_.kv();
  }

  /// Keys of a piece that have to be shipped.
  int64_t shipped_keys(const Cutout& piece) const {
    return piece.right - std::clamp(held_.end_at(piece.shard, piece.to), piece.left, piece.right);
  }

  /// The piece of about `rows` rows and as many keys as its pairs need.
  Cutout with_rows(const Region& region, int32_t to, double rows, int64_t pairs) const {
    int64_t top = grid_nearest(region.bottom - static_cast<int64_t>(rows));
    if (top >= region.bottom) top = grid_down(region.bottom - 1);
    top = std::max(top, region.top);
    const auto target = static_cast<double>(pairs);
    const auto height = static_cast<double>((region.bottom - top + kTileRows - 1) / kTileRows * kTileRows);
    const auto above = static_cast<double>(top - region.left);
    double keys = target / height;
    if (keys > above) {
      keys = above + height - std::sqrt(std::max(0.0, height * height - 2 * (target - height * above)));
    }
    Cutout piece{region.shard, to, top, region.bottom, region.left, 0};
    piece.right = region.left + static_cast<int64_t>(keys);
    piece.right =
        std::min(std::max(grid_nearest(piece.right), grid_down(region.left) + kTileRows), region.bottom);
    return piece;
  }

  int64_t bytes_of(const Cutout& piece) const {
    return piece.rows() * (bytes_.q + bytes_.o + (piece.partial() ? bytes_.lse : 0)) +
           shipped_keys(piece) * bytes_.kv();
  }

  int64_t keys_taken(size_t first_piece) const {
    int64_t keys = 0;
    for (size_t i = first_piece; i < carving_.pieces.size(); ++i) keys += carving_.pieces[i].keys();
    return keys;
  }

  void add_piece(const Cutout& piece) {
    carving_.pieces.push_back(piece);
    carving_.bytes += bytes_of(piece);
  }

  void add_region(const Region& region) {
    // Rows above the first key see none of the region's keys.
    const int64_t top = std::max(region.top, region.left);
    if (top < region.bottom) regions_.push_back({region.shard, top, region.bottom, region.left});
  }

  /// Takes the cut, trimmed so that it misses `pairs` by little, and returns the pairs taken.
  int64_t take(Cut& cut, int64_t pairs, bool may_add_strip) {
    const Region region = regions_[cut.region];
    regions_.erase(regions_.begin() + static_cast<int64_t>(cut.region));
    Cutout& piece = cut.piece;
    int64_t taken = cut.pairs;
    int64_t strip_rows = 0;
    if (piece.right < piece.bottom && std::abs(taken - pairs) > slack_) {
      while (taken > pairs && piece.right - kTileRows > piece.left) {
        piece.right = grid_down(piece.right - 1);
        taken = padded_pairs(piece);
      }
      const int64_t below_diagonal =
          !may_add_strip ? 0 : piece.bottom - std::max(piece.top, piece.right + kTileRows);
      strip_rows =
          std::clamp<int64_t>((pairs - taken + kTileRows * kTileRows / 2) / kTileRows / kTileRows * kTileRows,
                              0, grid_down(std::max<int64_t>(0, below_diagonal)));
    }
    add_piece(piece);
    add_region({region.shard, region.top, piece.top, region.left});
    const int64_t strip_top = std::max(piece.top, grid_down(piece.bottom + kTileRows - 1) - strip_rows);
    if (strip_rows == 0 || strip_top >= piece.bottom) {
      add_region({region.shard, piece.top, piece.bottom, piece.right});
      return taken;
    }
    const Cutout strip{piece.shard, piece.to, strip_top, piece.bottom, piece.right, piece.right + kTileRows,
                       true};
    carving_.pieces.push_back(strip);
    carving_.bytes += shipped_keys(strip) * bytes_.kv();
    add_region({region.shard, piece.top, strip_top, piece.right});
    add_region({region.shard, strip_top, piece.bottom, strip.right});
    return taken + padded_pairs(strip);
  }

  const RowBytes& bytes_;
  const HeldKeys& held_;
  int64_t slack_;
  double rho_;  // bytes of a row over those of a key
  double gap_;  // x above
  std::span<const Region> all_;
  Carving& carving_;
  std::vector<Region>& regions_;
  size_t pulled_ = 0;
};

template <typename Visit>
void visit_tasks(const Cutout& piece, Visit visit) {
  if (piece.right <= piece.top || piece.right >= piece.bottom) {
    visit(Span{piece.top, piece.bottom}, Span{piece.left, piece.right});
    return;
  }
  visit(Span{piece.top, piece.right}, Span{piece.left, piece.right});
  visit(Span{piece.right, piece.bottom}, Span{piece.left, piece.right});
}

}  // namespace

void Carving::clear() {
  pieces.clear();
  rest.clear();
  savings.clear();
  touched = 0;
  bytes = 0;
}

Carver::Carver(const Layout& layout, const RowBytes& bytes, int64_t slack)
    : bytes_(bytes), slack_(slack), held_(layout), first_(static_cast<size_t>(layout.ranks) + 1, 0) {
  for (const Shard& shard : layout.shards) ++first_[static_cast<size_t>(shard.home) + 1];
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  regions_.resize(layout.shards.size());
  std::vector<size_t> next(first_.begin(), first_.end() - 1);
  for (size_t i = 0; i < layout.shards.size(); ++i) {
    const Shard& shard = layout.shards[i];
    regions_[next[static_cast<size_t>(shard.home)]++] = {static_cast<int32_t>(i), shard.tokens.begin,
                                                         shard.tokens.end, 0};
  }
  for (size_t rank = 0; rank + 1 < first_.size(); ++rank) {
    std::sort(regions_.begin() + static_cast<int64_t>(first_[rank]),
              regions_.begin() + static_cast<int64_t>(first_[rank + 1]),
              [](const Region& a, const Region& b) {
                const int64_t a_size = a.rows() * (a.top + a.bottom), b_size = b.rows() * (b.top + b.bottom);
                return a_size != b_size ? a_size > b_size : a.shard < b.shard;
              });
  }
}

std::span<const Region> Carver::regions_of(int32_t rank) const {
  const size_t first = first_[static_cast<size_t>(rank)], last = first_[static_cast<size_t>(rank) + 1];
  return {regions_.data() + first, last - first};
}

void Carver::carve(int32_t rank, std::span<const Flow> flows, bool everything, Carving& carving) const {
  DonorCarver donor(bytes_, held_, slack_, regions_of(rank), carving);
  for (size_t i = 0; i < flows.size(); ++i) {
    if (everything && i + 1 == flows.size()) {
      donor.take_everything(flows[i]);
    } else {
      donor.take_flow(flows[i], !everything);
    }
  }
  donor.finish();
}

int64_t padded_pairs(const Cutout& piece) {
  int64_t sum = 0;
  visit_tasks(piece, [&](Span q, Span kv) { sum += padded_pairs(Task{0, q, kv, 0}); });
  return sum;
}

int64_t pairs(const Cutout& piece) {
  return pairs(Task{0, {piece.top, piece.bottom}, {piece.left, piece.right}, 0});
}

void add_tasks(const Cutout& piece, int32_t doc, std::vector<Task>& tasks) {
  visit_tasks(piece, [&](Span q, Span kv) { tasks.push_back({doc, q, kv, piece.to}); });
}

}  // namespace distca
