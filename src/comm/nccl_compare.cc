#include "comm/nccl_compare.h"

#include <sstream>

#include "comm/report.h"

namespace distca {

void compare_calls(NcclEngine& engine, NcclOperation& operation, const std::string& what,
                   const std::vector<ExchangePart>& parts) {
  const NcclLink& link = *operation.link;
  const auto size = static_cast<int32_t>(link.members.size());
  const std::vector<int64_t> sends = bytes_by_peer(parts, size, true);
  const std::vector<int64_t> expects = bytes_by_peer(parts, size, false);
  const auto key = [&](int32_t index) {
    return format("call {} of '{}' by {}", operation.number, link.path, index);
  };
  std::ostringstream mine;
  for (const int64_t bytes : sends) mine << bytes << ' ';
  engine.store().set(key(link.index), mine.str() + '\n' + what);
  for (int32_t index = 0; index < size; ++index) {
    if (index == link.index) continue;
    std::optional<std::string> theirs;
    engine.wait_until(operation, [&] { return (theirs = engine.store().get(key(index), 0)).has_value(); });
    const int32_t rank = link.members[link.index], other = link.members[index];
    const std::string other_what = theirs->substr(theirs->find('\n') + 1);
    if (what != other_what) throw PeerError(mismatch_message(rank, what, other, other_what));
    std::istringstream sizes(*theirs);
    for (size_t i = 0; i < sends.size(); ++i) {
      int64_t sent = 0;
      sizes >> sent;
      const size_t part = i / size;
      const int64_t expected = expects[part * size + index];
      if (static_cast<int32_t>(i % size) != link.index || sent == expected) continue;
      throw PeerError(size_message(part, operation.name, other, sent, rank, expected));
    }
  }
}

}  // namespace distca
