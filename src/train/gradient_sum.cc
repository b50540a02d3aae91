#include "train/gradient_sum.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "comm/reduce.h"

namespace distca {
namespace {

/// Elements [begin, end) of FlatParameters::gradients.
struct Run {
  int64_t begin = 0, end = 0;
};

DType dtype_of(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? DType::kFloat64 : DType::kFloat32;
}

/// `out`, which is one of the sources, becomes ((source 0 + source 1) + source 2) + …
void sum_in_rank_order(const std::vector<at::Tensor>& sources, const at::Tensor& out) {
  if (out.is_meta()) return;
  if (out.is_cpu()) {
    std::vector<const void*> pointers;
    for (const at::Tensor& source : sources) pointers.push_back(source.data_ptr());
    return reduce_in_rank_order(pointers, out.data_ptr(), out.numel(), dtype_of(out), ReduceOp::kSum);
  }
  at::Tensor sum = sources[0] + sources[1];
  for (size_t i = 2; i < sources.size(); ++i) sum.add_(sources[i]);
  out.copy_(sum);
}

}  // namespace

int64_t last_piece_of(const LlamaPart& part, const std::string& parameter) {
  const int64_t layers = part.layer_end - part.layer_begin;
  if (parameter == kEmbedding) return part.embedding ? 0 : layers;
  const std::string prefix = "model.layers.";
  if (parameter.compare(0, prefix.size(), prefix) != 0) return layers;
  const size_t dot = parameter.find('.', prefix.size());
  const int64_t layer = std::stoll(parameter.substr(prefix.size(), dot - prefix.size())) - part.layer_begin;
  const std::string rest = parameter.substr(dot + 1);
  const bool before_attention = rest == "input_layernorm.weight" ||
                                (rest.find("self_attn.") == 0 && rest.find("o_proj") == std::string::npos);
  return before_attention ? layer : layer + 1;
}

/// Each run is cut into as many slices as there are ranks.
struct GradientSum::Piece {
  std::vector<Run> runs;

  Run slice(const Run& run, int32_t ranks, int32_t rank) const {
    const int64_t count = run.end - run.begin;
    return {run.begin + slice_begin(count, ranks, rank), run.begin + slice_begin(count, ranks, rank + 1)};
  }
};

struct GradientSum::UnderWay {
  int64_t piece = 0;
  std::vector<at::Tensor> slices;  // by run: (ranks, elements of this rank's slice); its own row isn't used
  std::unique_ptr<Pending> pending;
};

GradientSum::GradientSum(Fabric& fabric, FlatParameters& parameters)
    : fabric_(fabric), parameters_(parameters) {
  const LlamaPart& part = parameters.model.part;
  pieces_.resize(static_cast<size_t>(part.layer_end - part.layer_begin + 1));
  std::vector<FlatEntry> entries = parameters.entries;
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  for (const FlatEntry& entry : entries) {
    std::vector<Run>& runs = pieces_[last_piece_of(part, entry.name)].runs;
    const int64_t end = entry.begin + entry.count;
    if (!runs.empty() && runs.back().end == entry.begin) {
      runs.back().end = end;
    } else {
      runs.push_back({entry.begin, end});
    }
  }
}

GradientSum::~GradientSum() = default;

void GradientSum::start(int64_t piece) {
  ++started_;
  if (fabric_.world_size() == 1) return;
  const Piece& at = pieces_.at(static_cast<size_t>(piece));
  const int32_t ranks = fabric_.world_size(), rank = fabric_.rank();
  const auto bytes = static_cast<int64_t>(parameters_.gradients.element_size());
  UnderWay sum;
  sum.piece = piece;
  std::vector<ExchangePart> parts;
  for (const Run& run : at.runs) {
    const Run own = at.slice(run, ranks, rank);
    const int64_t count = own.end - own.begin;
    sum.slices.push_back(at::empty({ranks, count}, parameters_.gradients.options()));
    ExchangePart part{parameters_.gradients.data_ptr(), sum.slices.back().data_ptr(), {}, {}};
    for (int32_t peer = 0; peer < ranks; ++peer) {
      if (peer == rank) continue;
      const Run slice = at.slice(run, ranks, peer);
      if (slice.end > slice.begin)
        part.sends.push_back({peer, slice.begin * bytes, (slice.end - slice.begin) * bytes});
      if (count > 0) part.receives.push_back({peer, peer * count * bytes, count * bytes});
    }
    parts.push_back(std::move(part));
  }
  sum.pending = fabric_.all_to_all(std::move(parts), format("sum of gradients of piece {}", piece));
  summing_.push_back(std::move(sum));
}

void GradientSum::wait(UnderWay& sum) {
  const double asked = fabric_.now();
  sum.pending->wait();
  const double answered = fabric_.now();
  wait_s += answered - asked;
  if (spans != nullptr) spans->add_wait("sum of gradients", asked, answered, sum.pending->end().peer);
}

void GradientSum::send_sums(UnderWay& sum) {
  wait(sum);
  const Piece& at = pieces_[static_cast<size_t>(sum.piece)];
  const int32_t ranks = fabric_.world_size(), rank = fabric_.rank();
  const at::Tensor& gradients = parameters_.gradients;
  const auto bytes = static_cast<int64_t>(gradients.element_size());
  std::vector<ExchangePart> parts;
  for (size_t i = 0; i < at.runs.size(); ++i) {
    const Run own = at.slice(at.runs[i], ranks, rank);
    const int64_t count = own.end - own.begin;
    const at::Tensor mine = gradients.narrow(0, own.begin, count);
    std::vector<at::Tensor> sources;
    for (int32_t peer = 0; peer < ranks; ++peer)
      sources.push_back(peer == rank ? mine : sum.slices[i].select(0, peer));
    sum_in_rank_order(sources, mine);
    ExchangePart part{gradients.data_ptr(), gradients.data_ptr(), {}, {}};
    for (int32_t peer = 0; peer < ranks; ++peer) {
      if (peer == rank) continue;
      const Run slice = at.slice(at.runs[i], ranks, peer);
      if (count > 0) part.sends.push_back({peer, own.begin * bytes, count * bytes});
      if (slice.end > slice.begin)
        part.receives.push_back({peer, slice.begin * bytes, (slice.end - slice.begin) * bytes});
    }
    parts.push_back(std::move(part));
  }
  sum.slices.clear();
  sum.pending = fabric_.all_to_all(std::move(parts), format("summed gradients of piece {}", sum.piece));
}

void GradientSum::advance() {
  for (; !summing_.empty(); summing_.pop_front()) {
    send_sums(summing_.front());
    returning_.push_back(std::move(summing_.front()));
  }
}

void GradientSum::finish() {
  advance();
  for (; !returning_.empty(); returning_.pop_front()) wait(returning_.front());
  DISTCA_CHECK(started_ == static_cast<int64_t>(pieces_.size()),
               "gradients of {} pieces of a stage of {} were summed", started_, pieces_.size());
  started_ = 0;
}

}  // namespace distca
