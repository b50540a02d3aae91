#include "plan/distribution.h"

#include <cmath>
#include <iterator>

#include "base/check.h"
#include "plan/length_tables.h"

namespace distca {
namespace {

constexpr int64_t kLongTokens = 65536;

/// Probability at which the piecewise linear quantile function reaches `tokens`.
double probability_below(const int32_t* lengths, int64_t tokens) {
  const auto at = static_cast<size_t>(
      std::lower_bound(lengths, lengths + std::size(kLengthProbabilities), tokens) - lengths);
  const double share = static_cast<double>(tokens - lengths[at - 1]) / (lengths[at] - lengths[at - 1]);
  return kLengthProbabilities[at - 1] + share * (kLengthProbabilities[at] - kLengthProbabilities[at - 1]);
}

double length_at(const int32_t* lengths, double probability) {
  const double* const end = std::end(kLengthProbabilities);
  const auto at = static_cast<size_t>(std::clamp(std::upper_bound(kLengthProbabilities, end, probability),
                                                 kLengthProbabilities + 1, end - 1) -
                                      kLengthProbabilities);
  const double width = kLengthProbabilities[at] - kLengthProbabilities[at - 1];
  const double share = (probability - kLengthProbabilities[at - 1]) / width;
  return lengths[at - 1] + share * (lengths[at] - lengths[at - 1]);
}

const int32_t* lengths_of(Distribution distribution) {
  return distribution == Distribution::kWlbllm ? kWlbllmLengths : kProlongLengths;
}

}  // namespace

Distribution distribution_named(const std::string& name) {
  if (name == "wlbllm") return Distribution::kWlbllm;
  DISTCA_CHECK_INPUT(name == "prolong", "distribution '{}' is neither wlbllm nor prolong", name);
  return Distribution::kProlong;
}

int64_t raw_documents(Distribution distribution) {
  return distribution == Distribution::kWlbllm ? 99519 : 77932;
}

double raw_length_at(Distribution distribution, double probability) {
  return length_at(lengths_of(distribution), probability);
}

int64_t LengthSampler::next() {
  const int32_t* const lengths = lengths_of(distribution_);
  const double below = probability_below(lengths, kLongTokens);
  // Weights of 1/2 and 4 on the two sides of 64K, inverted.
  const double draw = random_.unit() * (below / 2 + (1 - below) * 4);
  const bool is_long = draw >= below / 2;
  const double length = length_at(lengths, is_long ? below + (draw - below / 2) / 4 : draw * 2);
  if (distribution_ == Distribution::kWlbllm) {
    return std::max<int64_t>(1, std::llround(length * static_cast<double>(tokens_per_chunk_) / kLongTokens));
  }
  // Every long document adds 3/10; each time the sum passes a whole number that document becomes a chunk.
  if (is_long && long_documents_++ * 3 % 10 + 3 >= 10) return tokens_per_chunk_;
  return std::llround(length);
}

Documents sample_documents(Distribution distribution, int32_t chunks, int64_t tokens_per_chunk,
                           uint64_t seed) {
  DISTCA_CHECK_INPUT(chunks >= 1 && tokens_per_chunk >= 1, "{} chunks of {} tokens can't be filled", chunks,
                     tokens_per_chunk);
  LengthSampler sampler(distribution, tokens_per_chunk, seed);
  Documents documents;
  documents.tokens_per_chunk = tokens_per_chunk;
  int64_t rest = 0;
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    std::vector<int64_t>& lengths = documents.chunks.emplace_back();
    for (int64_t room = tokens_per_chunk; room > 0;) {
      if (rest == 0) rest = sampler.next();
      const int64_t length = std::min(rest, room);
      lengths.push_back(length);
      room -= length;
      rest -= length;
    }
  }
  return documents;
}

}  // namespace distca
