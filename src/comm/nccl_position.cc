#include "comm/nccl_position.h"

#include <set>
#include <sstream>

#include "comm/report.h"

namespace distca {
namespace {

/// Texts may hold anything, so each goes with its length.
void put(std::ostream& out, const std::string& text) {
  out << text.size() << ' ' << text << ' ';
}

std::string get(std::istream& in) {
  size_t size = 0;
  in >> size;
  in.get();
  std::string text(size, ' ');
  in.read(text.data(), static_cast<std::streamsize>(size));
  return text;
}

bool has_begun(const LateOperation& operation, const RankPosition& position) {
  const auto link = position.links.find(operation.path);
  return link != position.links.end() && link->second.begun >= operation.number;
}

bool has_finished(const LateOperation& operation, const RankPosition& position) {
  return has_begun(operation, position) && position.links.at(operation.path).finished >= operation.number;
}

}  // namespace

std::string encode(const RankPosition& position) {
  std::ostringstream out;
  out << position.ended << ' ' << position.links.size() << ' ';
  for (const auto& [path, link] : position.links) {
    put(out, path);
    out << link.begun << ' ' << link.finished << ' ';
  }
  put(out, position.last);
  out << position.last_s << ' ';
  put(out, position.waits_in);
  out << position.waits_for.size();
  for (const int32_t peer : position.waits_for) out << ' ' << peer;
  return out.str();
}

RankPosition decode_position(const std::string& bytes) {
  std::istringstream in(bytes);
  RankPosition out;
  size_t count = 0;
  in >> out.ended >> count;
  for (size_t i = 0; i < count; ++i) {
    LinkPosition& link = out.links[get(in)];
    in >> link.begun >> link.finished;
  }
  out.last = get(in);
  in >> out.last_s;
  out.waits_in = get(in);
  in >> count;
  out.waits_for.resize(count);
  for (int32_t& peer : out.waits_for) in >> peer;
  return out;
}

std::vector<int32_t> late_peers(const LateOperation& operation,
                                const std::map<int32_t, RankPosition>& answers) {
  std::vector<int32_t> late, unfinished;
  for (const int32_t peer : operation.peers) {
    const auto answer = answers.find(peer);
    if (answer == answers.end() || !has_begun(operation, answer->second)) {
      late.push_back(peer);
    } else if (!has_finished(operation, answer->second)) {
      unfinished.push_back(peer);
    }
  }
  if (!late.empty()) return late;
  return unfinished.empty() ? operation.peers : unfinished;
}

std::string lateness_text(const LateOperation& operation, const std::vector<int32_t>& late,
                          const std::map<int32_t, RankPosition>& answers) {
  std::string out;
  std::vector<int32_t> peers = late;
  std::set<int32_t> seen;
  while (!peers.empty() && seen.insert(peers[0]).second) {
    const auto answer = answers.find(peers[0]);
    if (answer == answers.end()) return out + ", which doesn't answer";
    const RankPosition& position = answer->second;
    if (seen.size() == 1 && has_begun(operation, position)) return ", which has begun it";
    if (position.ended) return out + ", which has ended";
    if (position.waits_in.empty()) {
      if (position.last.empty()) return out + ", which has begun nothing";
      return out + format(", which last began {} {} ago", position.last, seconds_text(position.last_s));
    }
    out += format(", which waits for {} in {}", rank_list(position.waits_for), position.waits_in);
    peers = position.waits_for;
  }
  return out;
}

}  // namespace distca
