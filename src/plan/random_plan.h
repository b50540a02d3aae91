// Random layouts and random valid plans, for tests and benchmarks of whatever reads plans: ragged documents,
// tasks cut along queries and keys anywhere the grid allows, servers drawn at random.
#pragma once

#include <cstdint>
#include <random>

#include "plan/plan.h"

namespace distca {

/// Random numbers that are the same on every machine: std's distributions aren't.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  /// A whole number in [low, high].
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  /// A number in [0, 1).
  double unit() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

  std::mt19937_64& engine() { return engine_; }

 private:
  std::mt19937_64 engine_;
};

/// 1 to `max_ranks` ranks, documents of 0 to `max_length` tokens; some layouts are padded.
Layout random_layout(Random& random, int32_t max_ranks, int64_t max_length);

/// The same without padding: every row of every rank holds a token.
Layout random_full_layout(Random& random, int32_t max_ranks, int64_t max_length);

/// A valid plan for `layout` with up to `max_dedicated` dedicated servers.
Plan random_plan(Random& random, const Layout& layout, int32_t max_dedicated = 2);

}  // namespace distca
