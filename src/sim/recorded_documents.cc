#include "sim/recorded_documents.h"

#include <algorithm>
#include <cmath>

namespace distca {
namespace {

constexpr int64_t kLongTokens = 65536;
constexpr int kRepeats = 4;

/// The same on every machine, unlike std::shuffle.
void shuffle(std::vector<int64_t>& values, Random& random) {
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random.below(i)]);
}

}  // namespace

std::vector<int64_t> recorded_documents(Distribution distribution, int64_t tokens_per_chunk, uint64_t seed) {
  Random random(seed);
  const int64_t count = raw_documents(distribution);
  std::vector<int64_t> long_lengths, short_lengths;
  for (int64_t i = 0; i < count; ++i) {
    const double probability = (static_cast<double>(i) + 0.5) / static_cast<double>(count);
    const int64_t length = std::llround(raw_length_at(distribution, probability));
    if (length >= kLongTokens) {
      long_lengths.insert(long_lengths.end(), kRepeats, length);
    } else if (random.unit() < 0.5) {
      short_lengths.push_back(length);
    }
  }
  shuffle(long_lengths, random);
  if (distribution == Distribution::kProlong) {
    const size_t whole_chunks = (long_lengths.size() * 3 + 5) / 10;
    std::fill_n(long_lengths.begin(), whole_chunks, tokens_per_chunk);
    shuffle(long_lengths, random);
    shuffle(short_lengths, random);
    long_lengths.insert(long_lengths.end(), short_lengths.begin(), short_lengths.end());
    return long_lengths;
  }
  long_lengths.insert(long_lengths.end(), short_lengths.begin(), short_lengths.end());
  shuffle(long_lengths, random);
  const double scale = static_cast<double>(tokens_per_chunk) / kLongTokens;
  for (int64_t& length : long_lengths) {
    length = std::max<int64_t>(1, std::llround(static_cast<double>(length) * scale));
  }
  return long_lengths;
}

std::vector<int64_t> ChunkPacker::next(int64_t chunks) {
  std::vector<int64_t> lengths;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    for (int64_t room = tokens_per_chunk_; room > 0;) {
      if (rest_ == 0) rest_ = documents_[at_++ % documents_.size()];
      const int64_t length = std::min(rest_, room);
      lengths.push_back(length);
      room -= length;
      rest_ -= length;
    }
  }
  return lengths;
}

}  // namespace distca
