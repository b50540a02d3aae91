#include "comm/mpi_call.h"

#include <cstring>
#include <numeric>

#include "comm/report.h"

namespace distca {
namespace {

class Writer {
 public:
  void put(int64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void put(const std::string& text) {
    put(static_cast<int64_t>(text.size()));
    bytes_ += text;
  }
  void put(const std::vector<int64_t>& values) {
    put(static_cast<int64_t>(values.size()));
    for (int64_t value : values) put(value);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}
  int64_t integer() {
    int64_t value = 0;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string text() {
    const int64_t size = integer();
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  std::vector<int64_t> integers() {
    std::vector<int64_t> values(integer());
    for (int64_t& value : values) value = integer();
    return values;
  }

 private:
  const std::string& bytes_;
  size_t at_ = 0;
};

}  // namespace

std::string encode(const CallMessage& message) {
  const auto& [group, source, destination, sequence] = message.key;
  Writer out;
  out.put(group);
  out.put(int64_t{source});
  out.put(int64_t{destination});
  out.put(sequence);
  out.put(message.name);
  out.put(message.what);
  out.put(int64_t{message.tag});
  out.put(message.sends);
  out.put(message.expects);
  out.put(message.data);
  return out.take();
}

CallMessage decode_call(const std::string& bytes) {
  Reader in(bytes);
  CallMessage message;
  auto& [group, source, destination, sequence] = message.key;
  group = in.text();
  source = static_cast<int32_t>(in.integer());
  destination = static_cast<int32_t>(in.integer());
  sequence = in.integer();
  message.name = in.text();
  message.what = in.text();
  message.tag = static_cast<int32_t>(in.integer());
  message.sends = in.integers();
  message.expects = in.integers();
  message.data = in.text();
  return message;
}

std::string encode(const FailureMessage& message) {
  Writer out;
  out.put(int64_t{message.rank});
  out.put(int64_t{message.input_error});
  out.put(message.text);
  return out.take();
}

FailureMessage decode_failure(const std::string& bytes) {
  Reader in(bytes);
  FailureMessage message;
  message.rank = static_cast<int32_t>(in.integer());
  message.input_error = in.integer() != 0;
  message.text = in.text();
  return message;
}

std::vector<MpiPair> make_pairs(const std::vector<ExchangePart>& parts,
                                const std::vector<int32_t>& world_ranks, int32_t rank, bool everybody) {
  const int32_t size = static_cast<int32_t>(world_ranks.size());
  std::vector<MpiPair> pairs(size);
  for (int32_t peer = 0; peer < size; ++peer) {
    pairs[peer].peer = world_ranks[peer];
    pairs[peer].sends.resize(parts.size());
    pairs[peer].expects.resize(parts.size());
  }
  for (size_t part = 0; part < parts.size(); ++part) {
    char* const send = const_cast<char*>(static_cast<const char*>(parts[part].send));
    for (const PeerBytes& to : parts[part].sends) {
      pairs[to.peer].sends[part] = to.bytes;
      if (to.bytes > 0) pairs[to.peer].send.push_back({send + to.offset, to.bytes});
    }
    for (const PeerBytes& from : parts[part].receives) {
      pairs[from.peer].expects[part] = from.bytes;
      char* const receive = static_cast<char*>(parts[part].recv) + from.offset;
      if (from.bytes > 0) pairs[from.peer].receive.push_back({receive, from.bytes});
    }
  }
  std::vector<MpiPair> out;
  for (int32_t step = 1; step < size; ++step) {
    MpiPair& pair = pairs[(rank + step) % size];
    if (everybody || !pair.send.empty() || !pair.receive.empty()) out.push_back(std::move(pair));
  }
  return out;
}

}  // namespace distca
