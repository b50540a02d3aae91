#include "model/tensor_group.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "base/check.h"

namespace distca {
namespace {

bool is_alone(const TensorGroup* group) {
  return size_of(group) == 1;
}

int64_t row_bytes(const at::Tensor& rows) {
  return rows.size(1) * static_cast<int64_t>(rows.element_size());
}

/// From `begin` until now.
void count_wait(TensorGroup& group, double begin) {
  const double end = group.fabric.now();
  group.wait_s += end - begin;
  if (group.spans != nullptr) group.spans->add_wait("tensor-parallel rows", begin, end);
}

/// What a capture gets in place of an operation: the operation itself is each run's own.
struct CapturedPending : Pending {
  std::shared_ptr<std::unique_ptr<Pending>> of_run = std::make_shared<std::unique_ptr<Pending>>();

  void wait() override {}
  bool done() override { return true; }
  PendingEnd end() override { return {0, -1}; }
};

void wait_for(TensorGroup& group, std::unique_ptr<Pending>& pending) {
  if (pending == nullptr) return;
  if (group.capturing != nullptr) {
    const auto of_run = static_cast<CapturedPending&>(*pending).of_run;
    group.capturing->between([&group, of_run] { wait_for(group, *of_run); });
    pending = nullptr;
    return;
  }
  const double begin = group.fabric.now();
  pending->wait();
  count_wait(group, begin);
  pending = nullptr;
}

/// Starts the exchange in which each rank sends peer p the bytes at send_at(p) of `send` and gets as many at
/// receive_at(p) of `recv`.
template <typename SendAt, typename ReceiveAt>
std::unique_ptr<Pending> exchange(TensorGroup& group, const at::Tensor& send, const at::Tensor& recv,
                                  int64_t bytes, SendAt send_at, ReceiveAt receive_at,
                                  const std::string& name) {
  if (bytes == 0) return nullptr;
  ExchangePart part{send.const_data_ptr(), recv.mutable_data_ptr(), {}, {}};
  for (int32_t peer = 0; peer < group.size(); ++peer) {
    if (peer == group.rank()) continue;
    part.sends.push_back({peer, send_at(peer), bytes});
    part.receives.push_back({peer, receive_at(peer), bytes});
  }
  const auto start = [&group, part = std::move(part), sent = bytes * (group.size() - 1), name] {
    group.bytes += sent;
    return group.fabric.all_to_all({part}, name);
  };
  if (group.capturing == nullptr) return start();
  auto pending = std::make_unique<CapturedPending>();
  group.capturing->between([start, of_run = pending->of_run] { *of_run = start(); });
  return pending;
}

}  // namespace

int32_t size_of(const TensorGroup* group) {
  return group == nullptr ? 1 : group->size();
}

RowRuns runs_of(const TensorGroup* group, int64_t rows) {
  if (is_alone(group)) return {rows, 1};
  return {rows, std::clamp<int64_t>(rows / std::max<int64_t>(1, group->least_rows), 1,
                                    std::max<int64_t>(1, group->runs))};
}

RowGather::RowGather(TensorGroup* group, const at::Tensor& own, const std::string& name)
    : RowGather(group, own, runs_of(group, own.size(0)), name) {}

RowGather::RowGather(TensorGroup* group, const at::Tensor& own, RowRuns runs, const std::string& name)
    : group_(group), runs_(runs), own_(own.contiguous()) {
  if (is_alone(group)) {
    all_ = own_;
    return;
  }
  const int64_t rows = own.size(0), bytes = row_bytes(own);
  all_ = at::empty({rows * group->size(), own.size(1)}, own.options());
  for (int64_t run = 0; run < runs_.runs; ++run) {
    const int64_t begin = runs_.begin(run);
    pending_.push_back(exchange(
        *group, own_, all_, runs_.count(run) * bytes, [&](int32_t) { return begin * bytes; },
        [&](int32_t peer) { return (peer * rows + begin) * bytes; }, name));
  }
  all_.narrow(0, group->rank() * rows, rows).copy_(own_);
}

void RowGather::wait(int64_t run) {
  if (!pending_.empty()) wait_for(*group_, pending_[static_cast<size_t>(run)]);
}

void RowGather::for_each_block(const RowBlock& block) {
  const int64_t rows = runs_.rows;
  if (is_alone(group_) || group_->runs == 1) {
    for (int64_t run = 0; run < runs_.runs; ++run) wait(run);
    block(0, all_.size(0));
    return;
  }
  block(group_->rank() * rows, rows);
  for (int64_t run = 0; run < runs_.runs; ++run) {
    wait(run);
    for (int32_t peer = 0; peer < group_->size(); ++peer) {
      if (peer != group_->rank()) block(peer * rows + runs_.begin(run), runs_.count(run));
    }
  }
}

RowScatter::RowScatter(TensorGroup* group, at::IntArrayRef shape_of_all, const at::TensorOptions& options,
                       const std::string& name)
    : RowScatter(group, shape_of_all, options, runs_of(group, shape_of_all[0] / size_of(group)), name) {}

RowScatter::RowScatter(TensorGroup* group, at::IntArrayRef shape_of_all, const at::TensorOptions& options,
                       RowRuns runs, const std::string& name)
    : group_(group), runs_(runs), name_(name), shares_(at::empty(shape_of_all, options)) {
  if (!is_alone(group)) received_ = at::empty(shape_of_all, options);
}

void RowScatter::send(int64_t run) {
  if (is_alone(group_)) return;
  const int64_t begin = runs_.begin(run), bytes = row_bytes(shares_);
  const auto at = [&](int32_t peer) { return (peer * runs_.rows + begin) * bytes; };
  pending_.push_back(exchange(*group_, shares_, received_, runs_.count(run) * bytes, at, at, name_));
}

void RowScatter::fill(const RowBlock& block) {
  const int64_t rows = runs_.rows;
  if (is_alone(group_) || group_->runs == 1) {
    block(0, shares_.size(0));
    for (int64_t run = 0; run < runs_.runs; ++run) send(run);
    return;
  }
  for (int64_t run = 0; run < runs_.runs; ++run) {
    for (int32_t peer = 0; peer < group_->size(); ++peer) {
      if (peer != group_->rank()) block(peer * rows + runs_.begin(run), runs_.count(run));
    }
    send(run);
  }
  block(group_->rank() * rows, rows);
}

at::Tensor RowScatter::finish() {
  if (is_alone(group_)) return shares_;
  const int64_t rows = runs_.rows;
  const bool wide = shares_.scalar_type() == at::kDouble || shares_.scalar_type() == at::kFloat;
  const at::Tensor sums =
      at::empty({rows, shares_.size(1)}, wide ? shares_.options() : shares_.options().dtype(at::kFloat));
  for (int64_t run = 0; run < runs_.runs; ++run) {
    wait_for(*group_, pending_[static_cast<size_t>(run)]);
    const int64_t begin = runs_.begin(run), count = runs_.count(run);
    const at::Tensor sum = sums.narrow(0, begin, count);
    for (int32_t source = 0; source < group_->size(); ++source) {
      const at::Tensor& from = source == group_->rank() ? shares_ : received_;
      const at::Tensor share = from.narrow(0, source * rows + begin, count);
      source == 0 ? sum.copy_(share) : sum.add_(share);
    }
  }
  return sums.to(shares_.scalar_type());
}

at::Tensor gather_now(TensorGroup& group, const at::Tensor& own, const std::string& name) {
  const at::Tensor mine = own.contiguous();
  std::vector<int64_t> shape = own.sizes().vec();
  shape.insert(shape.begin(), group.size());
  const at::Tensor all = at::empty(shape, own.options());
  const auto bytes = static_cast<int64_t>(mine.nbytes());
  const auto gather = [&group, from = mine.const_data_ptr(), to = all.mutable_data_ptr(), bytes, name] {
    const double begin = group.fabric.now();
    if (bytes > 0) group.fabric.all_gather(from, to, bytes, name);
    count_wait(group, begin);
    group.bytes += bytes * (group.size() - 1);
  };
  group.capturing == nullptr ? gather() : group.capturing->between(gather);
  return all;
}

}  // namespace distca
