#include "plan/held_keys.h"

#include <algorithm>

namespace distca {
namespace {

constexpr size_t kNear = 8;

}  // namespace

HeldKeys::HeldKeys(const Layout& layout) {
  const auto spans = [&](size_t i) { return i > 0 && layout.shards[i].doc == layout.shards[i - 1].doc; };
  bool any = false;
  for (size_t i = 0; i < layout.shards.size(); ++i) any |= spans(i);
  if (!any) return;
  shards_ = layout.shards;
  first_.resize(shards_.size());
  last_.resize(shards_.size());
  kin_.resize(at(layout.ranks));
  for (size_t begin = 0, end = 0; begin < shards_.size(); begin = end) {
    for (end = begin + 1; end < shards_.size() && spans(end);) ++end;
    for (size_t i = begin; i < end; ++i) {
      first_[i] = static_cast<int32_t>(begin);
      last_[i] = static_cast<int32_t>(end) - 1;
      const size_t near_begin = std::max(begin + kNear, i) - kNear, near_end = std::min(end, i + kNear + 1);
      for (size_t j = near_begin; j < near_end; ++j) {
        if (shards_[i].home != shards_[j].home) kin_[at(shards_[i].home)].push_back(shards_[j].home);
      }
    }
  }
  for (std::vector<int32_t>& kin : kin_) {
    std::sort(kin.begin(), kin.end());
    kin.erase(std::unique(kin.begin(), kin.end()), kin.end());
  }
}

int64_t HeldKeys::end_at(int32_t shard, int32_t server) const {
  if (!spans(shard)) return 0;
  for (int32_t i = last_[at(shard)]; i >= first_[at(shard)]; --i) {
    if (shards_[at(i)].home == server) return shards_[at(i)].tokens.end;
  }
  return 0;
}

const std::vector<int32_t>& HeldKeys::kin_of(int32_t rank) const {
  static const std::vector<int32_t> kNone;
  return kin_.empty() || at(rank) >= kin_.size() ? kNone : kin_[at(rank)];
}

}  // namespace distca
