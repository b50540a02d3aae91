// An operation of an MPI rank as its engine sees it: bytes to and from peers, under a key that is the same on
// all of them. Before any byte moves, each pair of peers exchanges a CallMessage that says what it calls and
// what it sends and expects; short data travels inside it.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "comm/fabric.h"

namespace distca {

/// Group (how it was split off), source and destination (ranks of the group; -1 for operations of all its
/// ranks), and the operation's number among those.
using MpiKey = std::tuple<std::string, int32_t, int32_t, int64_t>;

struct CallMessage {
  MpiKey key;
  std::string name, what;
  int32_t tag = 0;                      // what the sender of this message wants its data tagged with
  std::vector<int64_t> sends, expects;  // bytes, by part
  std::string data;                     // what is sent, where short
};

struct FailureMessage {
  int32_t rank = 0;
  bool input_error = false;
  std::string text;
};

/// Data up to this many bytes travels in the CallMessage.
inline constexpr int64_t kShortBytes = 2048;

std::string encode(const CallMessage& message);
std::string encode(const FailureMessage& message);
CallMessage decode_call(const std::string& bytes);
FailureMessage decode_failure(const std::string& bytes);

struct Segment {
  char* data = nullptr;
  int64_t bytes = 0;
};

/// What one peer has to do with a call.
struct MpiPair {
  int32_t peer = 0;  // rank of the job
  std::vector<Segment> send, receive;
  std::vector<int64_t> sends, expects;  // bytes, by part
  int32_t tag = 0;
  bool met = false;       // the peer's CallMessage came
  int64_t transfers = 0;  // under way in MPI
  int64_t coming = 0;     // of these, those to this rank
};

struct MpiCall {
  MpiKey key;
  std::string name, what;
  std::vector<MpiPair> pairs;
  int64_t open = 0;         // pairs that aren't done
  PendingEnd end;           // set with the last of them
  int64_t open_coming = 0;  // pairs from which not all has come
  PendingEnd arrival;       // set with the last of them
};

/// The pairs of an exchange among `world_ranks`. `everybody` makes a pair with every other rank, bytes or
/// not; the rank itself is left out.
std::vector<MpiPair> make_pairs(const std::vector<ExchangePart>& parts,
                                const std::vector<int32_t>& world_ranks, int32_t rank, bool everybody);

}  // namespace distca
