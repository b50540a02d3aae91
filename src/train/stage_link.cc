#include "train/stage_link.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <deque>
#include <string>
#include <utility>

#include "base/check.h"

namespace distca {
namespace {

std::string text_of(bool forward) {
  return forward ? "activations for the next stage" : "gradients for the stage before";
}

/// A tensor under way, with what it travels in.
struct UnderWay {
  at::Tensor out, in;
  WorkSpan span;
  std::unique_ptr<Pending> pending;
};

class LinkBase : public StageLink {
 public:
  LinkBase(Fabric& fabric, const RankGrid& grid, const StageTraffic& traffic)
      : fabric_(fabric), traffic_(traffic), rank_(fabric.rank()), dp_(grid.dp), ranks_(grid.model_ranks()) {}

 protected:
  at::Tensor new_tensor(int64_t rows) const {
    return at::empty({rows, traffic_.width},
                     at::TensorOptions().dtype(traffic_.dtype).device(traffic_.device));
  }
  /// The same data-parallel rank of the stage that tensors of the direction go to, or come from; −1 for none.
  int32_t peer(bool forward, bool to) const {
    const int32_t peer = forward == to ? rank_ + dp_ : rank_ - dp_;
    return rank_ < ranks_ && peer >= 0 && peer < ranks_ ? peer : -1;
  }
  /// A stage that waits for its neighbour has nothing to do.
  void wait(UnderWay& under_way) {
    const double begin = fabric_.now();
    under_way.pending->wait();
    const double end = fabric_.now();
    wait_s += end - begin;
    if (spans != nullptr) {
      spans->add({WorkKind::kBubble, under_way.span.name, spans->place, begin, end, -1,
                  under_way.pending->end().peer});
    }
    record(under_way);
  }
  void begin_span(UnderWay& under_way, bool forward, int64_t bytes) {
    const char* name = forward ? "activations" : "gradients of activations";
    under_way.span = {WorkKind::kCommunication, name, {}, fabric_.now()};
    under_way.span.bytes = bytes;
    if (spans != nullptr) under_way.span.place = spans->place;
  }
  /// After it was waited for.
  void record(UnderWay& under_way) {
    const PendingEnd end = under_way.pending->end();
    if (spans == nullptr || end.peer < 0) return;
    under_way.span.end = std::max(under_way.span.begin, end.time);
    under_way.span.peer = end.peer;
    spans->add(under_way.span);
  }
  /// Lets go of what has left.
  void let_go(std::deque<UnderWay>& leaving) {
    while (!leaving.empty() && leaving.front().pending->done()) {
      leaving.front().pending->wait();
      record(leaving.front());
      leaving.pop_front();
    }
  }

  Fabric& fabric_;
  StageTraffic traffic_;
  int32_t rank_, dp_, ranks_;
};

int64_t bytes_of(const at::Tensor& x) {
  return static_cast<int64_t>(x.nbytes());
}

class LinkInStep : public LinkBase {
 public:
  LinkInStep(Fabric& fabric, const RankGrid& grid, const StageTraffic& traffic)
      : LinkBase(fabric, grid, traffic) {}

  void give(bool forward, const at::Tensor& x, int64_t expected) override {
    UnderWay under_way;
    ExchangePart part;
    if (x.defined() && x.size(0) > 0) {
      under_way.out = x.contiguous();
      part.send = under_way.out.data_ptr();
      part.sends = {{peer(forward, true), 0, bytes_of(under_way.out)}};
      bytes_sent += bytes_of(under_way.out);
    }
    if (expected > 0) {
      under_way.in = new_tensor(expected);
      part.recv = under_way.in.data_ptr();
      part.receives = {{peer(forward, false), 0, bytes_of(under_way.in)}};
    }
    begin_span(under_way, forward, part.sends.empty() ? 0 : part.sends[0].bytes);
    under_way.pending = fabric_.all_to_all({part}, text_of(forward));
    if (expected > 0) {
      arriving_[forward].push_back(std::move(under_way));
    } else {
      leaving_.push_back(std::move(under_way));
    }
    let_go(leaving_);
  }

  at::Tensor take(bool forward, int64_t rows) override {
    if (rows == 0) return new_tensor(0);
    DISTCA_CHECK(!arriving_[forward].empty(), "a stage takes {} that nobody gave", text_of(forward));
    UnderWay& first = arriving_[forward].front();
    wait(first);
    at::Tensor x = first.in;
    arriving_[forward].pop_front();
    DISTCA_CHECK(x.size(0) == rows, "a stage takes {} rows and was given {}", rows, x.size(0));
    return x;
  }

 private:
  std::deque<UnderWay> arriving_[2], leaving_;
};

class LinkByPairs : public LinkBase {
 public:
  LinkByPairs(Fabric& fabric, const RankGrid& grid, const StageTraffic& traffic)
      : LinkBase(fabric, grid, traffic) {
    for (const bool forward : {false, true}) {
      // Pairs of neighbouring stages, the even ones first, so that no rank is in two at once.
      for (const int32_t parity : {0, 1}) {
        const int32_t stage = rank_ / dp_, below = stage - (stage % 2 == parity ? 0 : 1);
        const bool in_pair = below >= 0 && below + 1 < grid.pp;
        const int32_t color = in_pair ? below * dp_ + rank_ % dp_ : ranks_ + rank_;
        std::unique_ptr<Fabric> pair = fabric.split(color, "pairs of neighbouring stages");
        if (!in_pair) continue;
        const bool sends = (below == stage) == forward;
        (sends ? to_ : from_)[forward] = std::move(pair);
      }
    }
  }

  void give(bool forward, const at::Tensor& x, int64_t) override {
    let_go(leaving_);
    if (!x.defined() || x.size(0) == 0) return;
    UnderWay under_way;
    under_way.out = x.contiguous();
    bytes_sent += bytes_of(under_way.out);
    Fabric& pair = *to_[forward];
    ExchangePart part;
    part.send = under_way.out.data_ptr();
    part.sends = {{1 - pair.rank(), 0, bytes_of(under_way.out)}};
    begin_span(under_way, forward, bytes_of(under_way.out));
    under_way.pending = pair.all_to_all({part}, text_of(forward));
    leaving_.push_back(std::move(under_way));
  }

  at::Tensor take(bool forward, int64_t rows) override {
    at::Tensor x = new_tensor(rows);
    if (rows == 0) return x;
    Fabric& pair = *from_[forward];
    ExchangePart part;
    part.recv = x.data_ptr();
    part.receives = {{1 - pair.rank(), 0, bytes_of(x)}};
    UnderWay under_way;
    begin_span(under_way, forward, 0);
    under_way.pending = pair.all_to_all({part}, text_of(forward));
    wait(under_way);
    return x;
  }

 private:
  std::unique_ptr<Fabric> to_[2], from_[2];
  std::deque<UnderWay> leaving_;
};

}  // namespace

std::unique_ptr<StageLink> make_link_in_step(Fabric& attention, const RankGrid& grid,
                                             const StageTraffic& traffic) {
  return std::make_unique<LinkInStep>(attention, grid, traffic);
}

std::unique_ptr<StageLink> make_link_by_pairs(Fabric& attention, const RankGrid& grid,
                                              const StageTraffic& traffic) {
  return std::make_unique<LinkByPairs>(attention, grid, traffic);
}

}  // namespace distca
