#include "plan/carve.h"

#include <cmath>
#include <numeric>

namespace distca {
namespace {

/// How many of a donor's largest regions are looked at before smaller ones.
constexpr size_t kFirstRegions = 6;

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
class DonorCarver {
 public:
  DonorCarver(const RowBytes& bytes, int64_t slack, std::span<const Region> regions, Carving& carving)
      : bytes_(bytes), slack_(slack), all_(regions), carving_(carving), regions_(carving.rest) {
    carving_.clear();
    pulled_ = std::min(kFirstRegions, all_.size());
    regions_.assign(all_.begin(), all_.begin() + static_cast<int64_t>(pulled_));
  }

  void take_flow(const Flow& flow) {
    int64_t left = flow.pairs, keys = flow.max_keys;
    const size_t first = carving_.pieces.size();
    while (left > std::max<int64_t>(slack_, kTileRows * kTileRows / 2) && keys > 0) {
      Cut cut;
      if (!best_cut(flow.to, left, keys, cut)) break;
      left -= take(cut, left, keys - cut.piece.keys() >= kTileRows);
      keys = flow.max_keys - keys_taken(first);
    }
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

  void finish() { carving_.touched = pulled_; }

 private:
  void pull(size_t count) {
    for (; pulled_ < std::min(count, all_.size()); ++pulled_) regions_.push_back(all_[pulled_]);
  }

  /// The cheapest cut that takes all of `pairs`; if no region has so many, the one that takes a pair for the
  /// fewest bytes.
  bool best_cut(int32_t to, int64_t pairs, int64_t max_keys, Cut& best) {
    bool found = false, full = false;
    if (regions_.size() < kFirstRegions) pull(pulled_ + kFirstRegions);
    for (size_t i = 0; i < regions_.size(); ++i) consider(i, to, pairs, max_keys, best, found, full);
    return found;
  }

  void consider(size_t index, int32_t to, int64_t pairs, int64_t max_keys, Cut& best, bool& found,
                bool& full) {
    const Region& region = regions_[index];
    const auto offer = [&](const Cutout& piece) {
      if (piece.keys() > max_keys || piece.keys() <= 0 || piece.rows() <= 0) return;
      const Cut cut{index, piece, padded_pairs(piece), bytes_of(piece)};
      const bool is_full = cut.pairs >= pairs - std::max(slack_, kTileRows * cut.piece.rows());
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
    if (region_pairs <= pairs + slack_) return offer(all);
    const auto keys = static_cast<double>(region.keys()), target = static_cast<double>(pairs);
    const double rho =
        static_cast<double>(bytes_.q + bytes_.o + bytes_.lse) / static_cast<double>(bytes_.kv());
    double rows = std::sqrt(target / rho);
    double right = target / rows;
    if (rows + right > keys) {
      const double v = std::sqrt(std::max(0.0, keys * keys - 2 * target) / (1 + rho * rho));
      rows = keys - rho * v;
      right = keys - v;
    }
    if (right > static_cast<double>(max_keys)) {
      // A tile less wide and one higher than would just do, for the grid's sake.
      rows = target / static_cast<double>(std::max(kTileRows, max_keys - kTileRows)) + kTileRows;
    }
    offer(with_rows(region, to, rows, pairs));
    // Whole rows need no merge.
    if (region.left == 0 && region.keys() <= max_keys) {
      offer(with_rows(region, to, keys - std::sqrt(std::max(0.0, keys * keys - 2 * target)), pairs));
    }
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
           piece.keys() * bytes_.kv();
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
    carving_.bytes += strip.keys() * bytes_.kv();
    add_region({region.shard, piece.top, strip_top, piece.right});
    add_region({region.shard, strip_top, piece.bottom, strip.right});
    return taken + padded_pairs(strip);
  }

  const RowBytes& bytes_;
  int64_t slack_;
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
  touched = 0;
  bytes = 0;
}

Carver::Carver(const Layout& layout, const RowBytes& bytes, int64_t slack)
    : bytes_(bytes), slack_(slack), first_(static_cast<size_t>(layout.ranks) + 1, 0) {
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
  DonorCarver donor(bytes_, slack_, regions_of(rank), carving);
  for (size_t i = 0; i < flows.size(); ++i) {
    everything&& i + 1 == flows.size() ? donor.take_everything(flows[i]) : donor.take_flow(flows[i]);
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
