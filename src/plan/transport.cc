#include "plan/transport.h"

#include <algorithm>

namespace distca {

Rooms::Rooms(std::vector<Room> rooms) : rooms_(std::move(rooms)) {
  std::erase_if(rooms_, [](const Room& room) { return room.load <= 0; });
  std::sort(rooms_.begin(), rooms_.end());
}

void Rooms::insert(Room room) {
  if (room.load <= 0) return;
  rooms_.insert(std::lower_bound(rooms_.begin(), rooms_.end(), room), room);
}

int64_t Rooms::room_of(int32_t server) const {
  for (const Room& room : rooms_) {
    if (room.server == server) return room.load;
  }
  return 0;
}

void Rooms::take_from(int32_t server, int64_t load) {
  const auto at =
      std::find_if(rooms_.begin(), rooms_.end(), [&](const Room& room) { return room.server == server; });
  const Room left{at->load - load, server};
  rooms_.erase(at);
  insert(left);
}

int64_t Rooms::take(int64_t surplus, std::vector<Room>& flows) {
  while (surplus > 0 && !rooms_.empty()) {
    const auto tightest = std::lower_bound(rooms_.begin(), rooms_.end(), Room{surplus, -1});
    if (tightest != rooms_.end()) {
      const Room room = *tightest;
      rooms_.erase(tightest);
      flows.push_back({surplus, room.server});
      insert({room.load - surplus, room.server});
      return 0;
    }
    if (take_pair(surplus, flows)) return 0;
    flows.push_back(rooms_.back());
    surplus -= rooms_.back().load;
    rooms_.pop_back();
  }
  return surplus;
}

bool Rooms::take_pair(int64_t surplus, std::vector<Room>& flows) {
  if (rooms_.size() < 2 || rooms_[rooms_.size() - 1].load + rooms_[rooms_.size() - 2].load < surplus)
    return false;
  size_t best_low = 0, best_high = 0;
  int64_t least = INT64_MAX;
  for (size_t low = 0, high = rooms_.size() - 1; low < high;) {
    const int64_t excess = rooms_[low].load + rooms_[high].load - surplus;
    if (excess < 0) {
      ++low;
      continue;
    }
    if (excess < least) {
      least = excess;
      best_low = low;
      best_high = high;
    }
    --high;
  }
  const Room low = rooms_[best_low], high = rooms_[best_high];
  rooms_.erase(rooms_.begin() + static_cast<int64_t>(best_high));
  rooms_.erase(rooms_.begin() + static_cast<int64_t>(best_low));
  flows.push_back(high);
  flows.push_back({surplus - high.load, low.server});
  insert({least, low.server});
  return true;
}

}  // namespace distca
