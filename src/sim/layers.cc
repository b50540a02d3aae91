#include "sim/layers.h"

#include <algorithm>

namespace distca {
namespace {

using Times = std::vector<double>;

double linear_seconds(const StepCosts& costs, bool backward) {
  return backward ? costs.linear_backward : costs.linear_forward;
}
double tp_seconds(const StepCosts& costs, bool backward) {
  return backward ? costs.tp_backward : costs.tp_forward;
}
double attention_seconds(const StepCosts& costs, bool backward) {
  return backward ? costs.attention_backward : costs.attention_forward;
}

class DisaggregatedPass {
 public:
  DisaggregatedPass(const ClusterSetup& setup, const StepCosts& costs, const Pass& pass,
                    const std::vector<const PartWork*>& parts, const Times& ready, Timeline& timeline)
      : setup_(setup),
        costs_(costs),
        pass_(pass),
        parts_(parts),
        times_(parts.size(), ready),
        timeline_(timeline) {}

  Times run() {
    const double before = share_before_attention(setup_.model);
    const double first = pass_.backward ? 1 - before : before;
    for (int64_t layer = 0; layer < pass_.layers; ++layer) {
      layer_ = static_cast<int32_t>(pass_.first_layer + layer);
      const double share = layer == 0 ? first : 1;
      if (setup_.overlap == Overlap::kSingle) {
        for (size_t n = 0; n < parts_.size(); ++n) linear(n, share), attend(n);
      } else {
        for (size_t n = 0; n < parts_.size(); ++n) linear(n, share);
        for (size_t n = 0; n < parts_.size(); ++n) attend(n);
      }
    }
    for (size_t n = 0; n < parts_.size(); ++n) local_work(n, 1 - first);
    Times done = times_[0];
    for (const Times& times : times_) {
      for (size_t r = 0; r < done.size(); ++r) done[r] = std::max(done[r], times[r]);
    }
    return done;
  }

 private:
  TimelineEvent event(size_t rank, size_t part, EventKind kind, double seconds) const {
    return {static_cast<int32_t>(rank),
            Stream::kCompute,
            kind,
            pass_.backward,
            static_cast<int16_t>(pass_.first_part + static_cast<int64_t>(part)),
            layer_,
            0,
            seconds};
  }

  void local_work(size_t n, double share) {
    for (size_t r = 0; r < times_[n].size(); ++r) {
      const double tokens = parts_[n]->tokens[r] * share;
      if (tokens == 0) continue;
      double at = timeline_.run(
          event(r, n, EventKind::kLinear, tokens * linear_seconds(costs_, pass_.backward)), times_[n][r]);
      times_[n][r] = timeline_.run(
          event(r, n, EventKind::kTensorParallel, tokens * tp_seconds(costs_, pass_.backward)), at);
    }
  }

  void linear(size_t n, double share) {
    local_work(n, share);
    exchange(n, pass_.backward ? ExchangeKind::kBackwardDispatch : ExchangeKind::kDispatch,
             EventKind::kDispatch);
  }

  void attend(size_t n) {
    for (size_t r = 0; r < times_[n].size(); ++r) {
      const double work = parts_[n]->attention[r];
      if (work == 0) continue;
      times_[n][r] = timeline_.run(
          event(r, n, EventKind::kAttention, work * attention_seconds(costs_, pass_.backward)), times_[n][r]);
    }
    exchange(n, pass_.backward ? ExchangeKind::kBackwardCollect : ExchangeKind::kCollect,
             EventKind::kCollect);
  }

  /// A rank has everything when its own transfers are through and those that send to it have sent all.
  void exchange(size_t n, ExchangeKind kind, EventKind shown) {
    const ExchangeWork& work = parts_[n]->exchanges[static_cast<size_t>(kind)];
    if (pass_.free_exchanges) return wait_for_senders(n, work);
    const double scale = setup_.overlap == Overlap::kSignal ? 0 : 1;
    const Stream stream = setup_.overlap == Overlap::kSingle ? Stream::kCompute : Stream::kExchange;
    Times& times = times_[n];
    starts_.resize(times.size());
    ends_.resize(times.size());
    for (size_t r = 0; r < times.size(); ++r) {
      starts_[r] = std::max(times[r], timeline_.free_at(static_cast<int32_t>(r), stream));
      const bool takes_part = work.send_s[r] > 0 || work.receive_s[r] > 0;
      ends_[r] =
          starts_[r] + (takes_part ? work.latency : 0) + scale * std::max(work.send_s[r], work.receive_s[r]);
    }
    for (const ExchangeWork::Flow& flow : work.flows) {
      const auto from = static_cast<size_t>(flow.from), to = static_cast<size_t>(flow.to);
      const double sent = starts_[from] + work.latency + scale * work.send_s[from];
      const double received = starts_[from] + work.latency + scale * work.receive_s[to];
      ends_[to] = std::max({ends_[to], sent, received});
    }
    for (size_t r = 0; r < times.size(); ++r) {
      if (work.send_s[r] == 0 && work.receive_s[r] == 0) continue;
      TimelineEvent what = event(r, n, shown, ends_[r] - starts_[r]);
      what.stream = stream;
      times[r] = timeline_.run(what, starts_[r]);
    }
  }

  void wait_for_senders(size_t n, const ExchangeWork& work) {
    starts_ = times_[n];
    for (const ExchangeWork::Flow& flow : work.flows) {
      double& to = times_[n][static_cast<size_t>(flow.to)];
      to = std::max(to, starts_[static_cast<size_t>(flow.from)]);
    }
  }

  const ClusterSetup& setup_;
  const StepCosts& costs_;
  const Pass& pass_;
  const std::vector<const PartWork*>& parts_;
  std::vector<Times> times_;  // of each nano-batch: when each rank has what its next work needs
  Timeline& timeline_;
  Times starts_, ends_;
  int32_t layer_ = 0;
};

}  // namespace

double share_before_attention(const ModelShape& model) {
  const double qkv = static_cast<double>(model.hidden * model.head_dim * (model.heads + 2 * model.kv_heads));
  return qkv / static_cast<double>(model.layer_parameters());
}

std::vector<double> run_disaggregated(const ClusterSetup& setup, const StepCosts& costs, const Pass& pass,
                                      const std::vector<const PartWork*>& parts,
                                      const std::vector<double>& ready, Timeline& timeline) {
  return DisaggregatedPass(setup, costs, pass, parts, ready, timeline).run();
}

std::vector<double> run_at_home(const StepCosts& costs, const Pass& pass, const PartWork& part, int64_t group,
                                int64_t first, const std::vector<double>& ready, Timeline& timeline) {
  Times times = ready;
  const double gather_s =
      pass.free_exchanges ? 0 : (pass.backward ? costs.gather_backward : costs.gather_forward);
  for (int64_t layer = 0; layer < pass.layers; ++layer) {
    const auto run = [&](size_t r, EventKind kind, double seconds, double from) {
      return timeline.run(
          {static_cast<int32_t>(first + static_cast<int64_t>(r)), Stream::kCompute, kind, pass.backward,
           static_cast<int16_t>(pass.first_part), static_cast<int32_t>(pass.first_layer + layer), 0, seconds},
          from);
    };
    for (size_t r = 0; r < times.size(); ++r) {
      times[r] = run(r, EventKind::kLinear, part.tokens[r] * linear_seconds(costs, pass.backward), times[r]);
      times[r] =
          run(r, EventKind::kTensorParallel, part.tokens[r] * tp_seconds(costs, pass.backward), times[r]);
    }
    const auto size = static_cast<size_t>(group);
    for (size_t begin = 0; begin < times.size(); begin += size) {
      const double together = *std::max_element(times.begin() + static_cast<int64_t>(begin),
                                                times.begin() + static_cast<int64_t>(begin + size));
      for (size_t r = begin; r < begin + size; ++r) {
        const double at = run(r, EventKind::kGather, part.gathered[r] * gather_s, together);
        times[r] =
            run(r, EventKind::kAttention, part.attention[r] * attention_seconds(costs, pass.backward), at);
      }
    }
  }
  for (size_t begin = 0; begin < times.size(); begin += static_cast<size_t>(group)) {
    const auto from = times.begin() + static_cast<int64_t>(begin), to = from + group;
    std::fill(from, to, *std::max_element(from, to));
  }
  return times;
}

}  // namespace distca
