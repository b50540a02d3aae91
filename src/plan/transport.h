// Who gives how much to whom. Donors' surplus must fit in recipients' room, at the least sum of square roots
// of the flows, which is what moving them costs.
#pragma once

#include <cstdint>
#include <vector>

namespace distca {

/// A recipient and the load it may still take.
struct Room {
  int64_t load = 0;
  int32_t server = 0;

  friend auto operator<=>(const Room&, const Room&) = default;
};

/// Recipients ordered by room, from which donors take one after the other.
class Rooms {
 public:
  explicit Rooms(std::vector<Room> rooms);

  bool empty() const { return rooms_.empty(); }

  /// What a recipient has room for, and takes.
  int64_t room_of(int32_t server) const;
  void take_from(int32_t server, int64_t load);

  /// Takes `surplus` from the tightest recipient that has room for all of it; else from the pair of least
  /// excess, the larger first; else fills the largest recipient, and goes on. Appends (server, load) to
  /// `flows`. When room ends, what is left is returned.
  int64_t take(int64_t surplus, std::vector<Room>& flows);

 private:
  void insert(Room room);
  bool take_pair(int64_t surplus, std::vector<Room>& flows);

  std::vector<Room> rooms_;  // ascending
};

}  // namespace distca
