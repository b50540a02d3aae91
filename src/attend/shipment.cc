#include "attend/shipment.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <set>

#include "attend/rows.h"
#include "attend/work_timer.h"
#include "base/check.h"

namespace distca {
namespace {

std::vector<int64_t> with_rows(const at::Tensor& x, int64_t rows) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[0] = rows;
  return sizes;
}

int64_t row_bytes(const at::Tensor& x) {
  int64_t bytes = static_cast<int64_t>(x.element_size());
  for (int64_t i = 1; i < x.dim(); ++i) bytes *= x.size(i);
  return bytes;
}

std::vector<PeerBytes> in_bytes(const std::vector<PeerRows>& peers, int64_t row_bytes) {
  std::vector<PeerBytes> out;
  for (const PeerRows& peer : peers)
    out.push_back({peer.peer, peer.offset * row_bytes, peer.rows * row_bytes});
  return out;
}

}  // namespace

void AttentionStats::count(const std::string& kind, int64_t bytes) {
  for (Sent& one : sent) {
    if (one.kind == kind) {
      one.bytes += bytes;
      return;
    }
  }
  sent.push_back({kind, bytes});
}

int64_t AttentionStats::bytes(const std::string& kind) const {
  for (const Sent& one : sent) {
    if (one.kind == kind) return one.bytes;
  }
  return 0;
}

int64_t AttentionStats::total_bytes() const {
  int64_t total = 0;
  for (const Sent& one : sent) total += one.bytes;
  return total;
}

at::Tensor SignalRows::take(const std::string& kind, const at::Tensor& x, int64_t rows) {
  at::Tensor& kept = last[kind];
  const bool fits =
      kept.defined() && kept.scalar_type() == x.scalar_type() && row_bytes(kept) == row_bytes(x);
  if (!fits || kept.size(0) < rows) {
    at::Tensor more = at::zeros(with_rows(x, rows), x.options());
    if (fits) more.narrow(0, 0, kept.size(0)).copy_(kept);
    kept = more;
  }
  return kept.narrow(0, 0, rows);
}

void SignalRows::remember(const std::string& kind, const at::Tensor& rows) {
  take(kind, rows, rows.size(0)).copy_(rows);
}

Shipment::Shipment(BufferPool& pool, AttentionStats& stats, SpanLog* spans, SignalRows* signal)
    : pool_(pool), stats_(stats), spans_(spans), signal_(signal) {}

at::Tensor Shipment::take_in(const std::string& kind, const at::Tensor& x, int64_t rows) {
  return sends_rows() ? pool_.take(with_rows(x, rows), x.scalar_type(), x.device())
                      : signal_->take(kind, x, rows);
}

void Shipment::add(Item item, int64_t sent_bytes, std::vector<PeerBytes> sends,
                   std::vector<PeerBytes> receives) {
  if (sends_rows()) stats_.count(item.kind, sent_bytes);
  parts_.push_back({item.out.data_ptr(), item.in.data_ptr(), std::move(sends), std::move(receives)});
  items_.push_back(std::move(item));
}

void Shipment::to_servers(const RowTable& table, const at::Tensor& x, const std::string& kind) {
  const WorkTimer timer(stats_.pack_s, spans_, WorkKind::kPack, "pack");
  DISTCA_CHECK(x.size(0) == table.home_rows, "{} has {} rows, the plan's home buffers {}", kind, x.size(0),
               table.home_rows);
  const int64_t bytes = row_bytes(x);
  Item item;
  item.kind = kind;
  item.out = pool_.take(with_rows(x, table.sent_rows), x.scalar_type(), x.device());
  item.in = take_in(kind, x, table.rest_rows());
  gather_rows(item.out, x, table.sent);
  item.home = x;
  item.table = &table;
  add(std::move(item), table.sent_rows * bytes, in_bytes(table.home_peers, bytes),
      in_bytes(table.server_peers, bytes));
}

void Shipment::to_homes(const RowTable& table, const at::Tensor& x, const std::string& kind) {
  const WorkTimer timer(stats_.pack_s, spans_, WorkKind::kPack, "pack");
  const int64_t bytes = row_bytes(x);
  Item item;
  item.kind = kind;
  item.out = x;
  item.in = take_in(kind, x, table.sent_rows + 1);
  add(std::move(item), table.arrived_rows * bytes, in_bytes(table.server_peers, bytes),
      in_bytes(table.home_peers, bytes));
}

/// One byte to and from every peer that would send or get rows.
void Shipment::signal_instead(int32_t ranks) {
  static const char kSignal = 1;
  std::set<int32_t> to, from;
  for (const ExchangePart& part : parts_) {
    for (const PeerBytes& peer : part.sends)
      if (peer.bytes > 0) to.insert(peer.peer);
    for (const PeerBytes& peer : part.receives)
      if (peer.bytes > 0) from.insert(peer.peer);
  }
  signals_.resize(static_cast<size_t>(ranks));
  ExchangePart signals{&kSignal, signals_.data(), {}, {}};
  for (const int32_t peer : to) signals.sends.push_back({peer, 0, 1});
  for (const int32_t peer : from) signals.receives.push_back({peer, peer, 1});
  parts_ = {std::move(signals)};
  stats_.count("signal", static_cast<int64_t>(to.size()));
}

void Shipment::start(Fabric& fabric, const char* what, const std::string& name) {
  if (!sends_rows()) signal_instead(fabric.world_size());
  fabric_ = &fabric;
  if (spans_ != nullptr && spans_->on()) {
    span_ = {WorkKind::kCommunication, what, spans_->place, fabric.now()};
    span_.bytes = 0;
    for (const ExchangePart& part : parts_)
      for (const PeerBytes& peer : part.sends) span_.bytes += peer.bytes;
  }
  pending_ = fabric.all_to_all(parts_, std::string(what) + " of " + name);
}

template <typename Wait, typename End>
PendingEnd Shipment::wait(const Wait& wait, const End& end) {
  const double asked = fabric_->now();
  wait();
  const double answered = fabric_->now();
  stats_.wait_s += answered - asked;
  if (spans_ == nullptr || !spans_->on()) return {};
  const PendingEnd last = end();
  spans_->add_wait(span_.name, asked, answered, last.peer);
  return last;
}

std::vector<at::Tensor> Shipment::arrive() {
  wait([&] { pending_->wait_arrived(); }, [&] { return pending_->arrival(); });
  const WorkTimer timer(stats_.pack_s, spans_, WorkKind::kPack, "unpack");
  std::vector<at::Tensor> arrived;
  for (Item& item : items_) {
    if (signal_ != nullptr && signal_->sends_rows) signal_->remember(item.kind, item.in);
    if (item.table != nullptr) {
      const int64_t rows = item.table->arrived_rows;
      gather_rows(item.in.narrow(0, rows, item.table->copied_rows), {item.home, item.in.narrow(0, 0, rows)},
                  item.table->copied);
      item.home = at::Tensor();
    }
    arrived.push_back(std::move(item.in));
  }
  return arrived;
}

void Shipment::leave() {
  const PendingEnd end = wait([&] { pending_->wait(); }, [&] { return pending_->end(); });
  items_.clear();
  if (spans_ == nullptr || !spans_->on()) return;
  span_.end = std::max(span_.begin, end.time);
  span_.peer = end.peer;
  if (end.peer >= 0 && span_.bytes >= 0) spans_->add(span_);
}

std::vector<at::Tensor> Shipment::finish() {
  std::vector<at::Tensor> arrived = arrive();
  leave();
  return arrived;
}

}  // namespace distca
