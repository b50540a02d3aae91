#include "plan/bound.h"

#include <algorithm>
#include <cmath>

#include "plan/transport_bound.h"

namespace distca {
namespace {

/// Bytes that a load moved from one rank to another costs at least.
class RootCost {
 public:
  RootCost(const RowBytes& bytes, int64_t padding)
      : row_(static_cast<double>(bytes.q + bytes.o)),
        key_(static_cast<double>(bytes.kv())),
        padding_(static_cast<double>(padding)) {}

  double operator()(double load) const {
    if (load * key_ < row_ * padding_ * padding_) return key_ * load / padding_;
    return 2 * std::sqrt(row_ * key_ * load) - row_ * padding_;
  }

 private:
  double row_, key_, padding_;
};

struct Surpluses {
  std::vector<double> rooms;    // descending
  std::vector<double> surplus;  // of each server, 0 where it has room
  double total = 0;

  Surpluses(const std::vector<int64_t>& loads, const std::vector<int64_t>& capacities)
      : surplus(loads.size(), 0) {
    for (size_t i = 0; i < loads.size(); ++i) {
      const auto over = static_cast<double>(loads[i] - capacities[i]);
      if (over <= 0) {
        rooms.push_back(-over);
        continue;
      }
      surplus[i] = over;
      total += over;
    }
    std::sort(rooms.rbegin(), rooms.rend());
  }

  /// What it costs to fill the largest rooms with `load`.
  double fill(double load, const RootCost& cost) const {
    double sum = 0;
    for (size_t i = 0; i < rooms.size() && load > 0; ++i) {
      sum += cost(std::min(load, rooms[i]));
      load -= rooms[i];
    }
    return sum;
  }

  double root_bound(const RootCost& cost) const {
    double donors = 0;
    for (const double over : surplus) donors += fill(over, cost);
    return std::max(fill(total, cost), donors);
  }
};

bool is_whole(const Layout& layout, const Shard& shard) {
  return shard.tokens.size() == layout.doc_lengths[static_cast<size_t>(shard.doc)];
}

/// Rows that a document's last tile counts and doesn't have.
int64_t padding_of(const Shard& shard) {
  return (kTileRows - shard.tokens.end % kTileRows) % kTileRows;
}

/// The load of a shard at home, as every cut of it has it at least.
int64_t load_of(const Layout& layout, const Shard& shard) {
  const Task task{shard.doc, shard.tokens, {0, shard.tokens.end}, shard.home};
  if (!is_whole(layout, shard)) return pairs(task);
  return padded_pairs(task) - (padding_of(shard) > 0 ? 1 : 0);  // it was rounded up
}

DocumentCost document_cost(int64_t tokens, int64_t padding, const RowBytes& bytes) {
  return {bytes, static_cast<double>(tokens + padding), static_cast<double>(padding)};
}

/// Flows among so many donors and recipients at most are looked at one by one.
constexpr size_t kMostFlows = 300;

/// Of up to so many donors, documents count one by one: it takes a millisecond each.
constexpr int64_t kFewDonors = 300;

/// What sharing out the surplus costs at least, or 0.
double transport_bound(const Layout& layout, const Surpluses& all, const RowBytes& bytes, int64_t padding) {
  std::vector<double> surplus, rooms;
  for (const double over : all.surplus) {
    if (over > 0) surplus.push_back(over);
  }
  for (const double room : all.rooms) {
    if (room > 0) rooms.push_back(room);
  }
  if (surplus.empty() || surplus.size() * rooms.size() > kMostFlows) return 0;
  const int64_t longest = *std::max_element(layout.doc_lengths.begin(), layout.doc_lengths.end());
  const int64_t tiles = (longest + kTileRows - 1) / kTileRows;
  const MoveCost cost(document_cost(tiles * kTileRows - padding, padding, bytes),
                      *std::max_element(surplus.begin(), surplus.end()));
  return transport_bound_bytes(surplus, rooms, cost);
}

/// Shards of one rank under the price of a unit of load. With rho = a / b, the cheapest x of a document of D
/// tokens, padding included, beyond where the mask clips costs b · (K - v · (rho² + 1)), where
/// v = sqrt((D² - 2x) / (1 + rho²)) and K = D · (rho + 1) - rho · g: b / v more for each unit. Load per byte
/// is most at v = (K - sqrt(K² - (1 + rho²) · D²)) / (1 + rho²); up to there the line from 0 is below the
/// cost. D is the number of tokens and 1/2, and x the load less 1/8, which makes up for rows and keys being
/// whole.
class Offers {
 public:
  Offers(const Layout& layout, const std::vector<Shard>& shards, const RowBytes& bytes)
      : row_(static_cast<double>(bytes.q + bytes.o)),
        key_(static_cast<double>(bytes.kv())),
        rho_(row_ / key_),
        square_(1 + rho_ * rho_) {
    for (const Shard& shard : shards) {
      const auto end = static_cast<double>(shard.tokens.end);
      const auto load = static_cast<double>(load_of(layout, shard));
      if (is_whole(layout, shard)) {
        add_document(end, static_cast<double>(padding_of(shard)), load);
      } else {
        lines_.push_back({row_ / end, load});
      }
    }
  }

  /// What `surplus` costs at least: at any price, what it is worth less what all offers gain.
  double least_cost(double surplus) const {
    surplus -= static_cast<double>(curves_.size()) / 8;
    if (surplus <= 0) return 0;
    double low = 0, high = 1;
    while (load_at(high) < surplus && high < 1e12) high *= 2;
    for (int i = 0; i < 60; ++i) {
      const double middle = (low + high) / 2;
      (load_at(middle) < surplus ? low : high) = middle;
    }
    return std::max(worth(low, surplus), worth(high, surplus));
  }

 private:
  struct Line {
    double price, load;  // bytes for each unit of load, and how much there is
  };
  struct Curve {
    double length, fixed, gap;  // D, K, and the v of most load per byte
  };

  void add_document(double tokens, double padding, double load) {
    const double length = tokens + padding + 0.5;
    const double fixed = length * (rho_ + 1) - rho_ * padding;
    const double root = fixed * fixed - square_ * length * length;
    if (root >= 0 && fixed > 0) {
      curves_.push_back({length, fixed, (fixed - std::sqrt(root)) / square_});
    } else {  // all keys of all rows, of which at least so many exist
      const double rows = static_cast<double>(kTileRows) - padding;
      lines_.push_back({row_ * rows / static_cast<double>(kTileRows) / tokens + key_ / length, load});
    }
  }

  double load_at(double price) const {
    double sum = 0;
    for (const Curve& curve : curves_) {
      const double v = key_ / price;
      if (v < curve.gap) sum += (curve.length * curve.length - square_ * v * v) / 2;
    }
    for (const Line& line : lines_) sum += line.price < price ? line.load : 0;
    return sum;
  }

  double worth(double price, double surplus) const {
    double gains = 0;
    for (const Curve& curve : curves_) {
      const double v = key_ / price;
      if (v >= curve.gap) continue;
      gains +=
          price * (curve.length * curve.length - square_ * v * v) / 2 - key_ * (curve.fixed - v * square_);
    }
    for (const Line& line : lines_) gains += line.load * std::max(0.0, price - line.price);
    return price * surplus - gains;
  }

  double row_, key_, rho_, square_;
  std::vector<Line> lines_;
  std::vector<Curve> curves_;
};

}  // namespace

double root_bound_bytes(const std::vector<int64_t>& loads, const std::vector<int64_t>& capacities,
                        const RowBytes& bytes, int64_t padding) {
  return Surpluses(loads, capacities).root_bound(RootCost(bytes, padding));
}

double mask_bound_bytes(const Layout& layout, const std::vector<Shard>& shards, double surplus,
                        const RowBytes& bytes) {
  const double at_any_price = Offers(layout, shards, bytes).least_cost(surplus);
  std::vector<DocumentCost> documents;
  for (const Shard& shard : shards) {
    if (!is_whole(layout, shard)) return at_any_price;
    documents.push_back(document_cost(shard.tokens.end, padding_of(shard), bytes));
  }
  return std::max(at_any_price, documents_bound_bytes(std::move(documents), surplus));
}

LowerBound lower_bound(const Layout& layout, const std::vector<int64_t>& capacities, const RowBytes& bytes) {
  std::vector<int64_t> loads(capacities.size(), 0);
  std::vector<std::vector<Shard>> at_home(capacities.size());
  double free_keys = 0;
  int64_t padding = 0;
  for (const Shard& shard : layout.shards) {
    const auto home = static_cast<size_t>(shard.home);
    loads[home] += load_of(layout, shard);
    at_home[home].push_back(shard);
    if (is_whole(layout, shard)) {
      padding = std::max(padding, padding_of(shard));
    } else {
      free_keys += static_cast<double>(shard.tokens.size() * bytes.kv());
    }
  }
  const Surpluses all(loads, capacities);
  const RootCost cost(bytes, padding);
  const auto donors = std::count_if(all.surplus.begin(), all.surplus.end(), [](double x) { return x > 0; });
  double masked = 0, either = 0;
  for (size_t i = 0; i < at_home.size(); ++i) {
    if (all.surplus[i] <= 0) continue;
    const double mask = donors <= kFewDonors ? mask_bound_bytes(layout, at_home[i], all.surplus[i], bytes)
                                             : Offers(layout, at_home[i], bytes).least_cost(all.surplus[i]);
    masked += mask;
    either += std::max(mask, all.fill(all.surplus[i], cost));
  }
  LowerBound bound;
  bound.root = std::max(0.0, all.root_bound(cost) - free_keys);
  bound.mask = std::max({bound.root, masked, either - free_keys});
  bound.best = bound.mask;
  if (free_keys == 0) bound.best = std::max(bound.mask, transport_bound(layout, all, bytes, padding));
  return bound;
}

}  // namespace distca
