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
  put(out, position.error);
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
  out.error = get(in);
  in >> count;
  out.waits_for.resize(count);
  for (int32_t& peer : out.waits_for) in >> peer;
  return out;
}

std::vector<int32_t> late_peers(const LateOperation& operation,
                                const std::map<int32_t, RankPosition>& answers) {
  std::vector<int32_t> late, failed, unfinished;
  for (const int32_t peer : operation.peers) {
    const auto answer = answers.find(peer);
    if (answer == answers.end() || !has_begun(operation, answer->second)) {
      late.push_back(peer);
    } else if (!answer->second.error.empty()) {
      failed.push_back(peer);
    } else if (!has_finished(operation, answer->second)) {
      unfinished.push_back(peer);
    }
  }
  for (const auto& found : {late, failed, unfinished})
    if (!found.empty()) return found;
  return operation.peers;
}

std::string lateness_text(const LateOperation& operation, const std::vector<int32_t>& late,
                          const std::map<int32_t, RankPosition>& answers) {
  std::string out;
  std::vector<int32_t> peers = late;
  std::set<int32_t> seen;
  while (!peers.empty() && seen.insert(peers[0]).second) {
    out += peers.size() == 1 ? ", which " : format(", of which rank {} ", peers[0]);
    const auto answer = answers.find(peers[0]);
    if (answer == answers.end()) return out + "doesn't answer";
    const RankPosition& position = answer->second;
    if (!position.error.empty()) return out + format("says that NCCL reports '{}'", position.error);
    if (seen.size() == 1 && has_begun(operation, position)) return out + "has begun it";
    if (position.ended) return out + "has ended";
    if (position.waits_in.empty()) {
      if (position.last.empty()) return out + "has begun nothing";
      return out + format("last began {} {} ago", position.last, seconds_text(position.last_s));
    }
    out += format("waits for {} in {}", rank_list(position.waits_for), position.waits_in);
    peers = position.waits_for;
  }
  return out;
}

}  // namespace distca
