#include "attend/shipment.h"

#include <ATen/ops/index_select.h>

#include "base/check.h"
#include "base/clock.h"

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

// index_select into rows [begin, begin + index.size) of `out`.
void gather(at::Tensor& out, int64_t begin, const at::Tensor& x, const at::Tensor& index) {
  at::Tensor rows = out.narrow(0, begin, index.size(0));
  at::index_select_out(rows, x, 0, index);
}

std::vector<PeerBytes> in_bytes(const std::vector<PeerRows>& peers, int32_t own_rank, int64_t row_bytes) {
  std::vector<PeerBytes> out;
  for (const PeerRows& peer : peers) {
    if (peer.peer != own_rank) out.push_back({peer.peer, peer.offset * row_bytes, peer.rows * row_bytes});
  }
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

Shipment::Shipment(const RankTables& tables, BufferPool& pool, AttentionStats& stats)
    : tables_(tables), pool_(pool), stats_(stats) {}

void Shipment::to_servers(const RowTable& table, const at::Tensor& x, const std::string& kind) {
  const double begin = thread_cpu_seconds();
  DISTCA_CHECK(x.size(0) == table.home_rows, "{} has {} rows, the plan's home buffers {}", kind, x.size(0),
               table.home_rows);
  const int64_t own = table.served_rows() - table.sent_rows, bytes = row_bytes(x);
  Item item;
  item.out = pool_.take(with_rows(x, table.sent_rows), x.scalar_type(), x.device());
  item.in = pool_.take(with_rows(x, table.received_rows + own), x.scalar_type(), x.device());
  gather(item.out, 0, x, table.home_index.narrow(0, 0, table.sent_rows));
  gather(item.in, table.received_rows, x, table.home_index.narrow(0, table.sent_rows, own));
  item.arrange = &table.arrange;
  parts_.push_back({item.out.data_ptr(), item.in.data_ptr(), in_bytes(table.home_peers, tables_.rank, bytes),
                    in_bytes(table.server_peers, tables_.rank, bytes)});
  items_.push_back(std::move(item));
  stats_.count(kind, table.sent_rows * bytes);
  stats_.pack_s += thread_cpu_seconds() - begin;
}

void Shipment::to_homes(const RowTable& table, const at::Tensor& x, const std::string& kind, int64_t spare) {
  const double begin = thread_cpu_seconds();
  const int64_t own = table.served_rows() - table.sent_rows, bytes = row_bytes(x);
  Item item;
  item.out = pool_.take(with_rows(x, table.received_rows), x.scalar_type(), x.device());
  item.in = pool_.take(with_rows(x, table.served_rows() + spare), x.scalar_type(), x.device());
  gather(item.out, 0, x, table.arrived_index.narrow(0, 0, table.received_rows));
  gather(item.in, table.sent_rows, x, table.arrived_index.narrow(0, table.received_rows, own));
  parts_.push_back({item.out.data_ptr(), item.in.data_ptr(),
                    in_bytes(table.server_peers, tables_.rank, bytes),
                    in_bytes(table.home_peers, tables_.rank, bytes)});
  items_.push_back(std::move(item));
  stats_.count(kind, table.received_rows * bytes);
  stats_.pack_s += thread_cpu_seconds() - begin;
}

void Shipment::start(Fabric& fabric, const std::string& name) {
  fabric_ = &fabric;
  pending_ = fabric.all_to_all(parts_, name);
}

std::vector<at::Tensor> Shipment::finish() {
  const double asked = fabric_->now();
  pending_->wait();
  stats_.wait_s += fabric_->now() - asked;
  const double begin = thread_cpu_seconds();
  std::vector<at::Tensor> arrived;
  for (Item& item : items_) {
    if (item.arrange == nullptr) {
      arrived.push_back(std::move(item.in));
      continue;
    }
    at::Tensor ordered =
        pool_.take(with_rows(item.in, item.arrange->size(0)), item.in.scalar_type(), item.in.device());
    at::index_select_out(ordered, item.in, 0, *item.arrange);
    arrived.push_back(std::move(ordered));
  }
  items_.clear();
  stats_.pack_s += thread_cpu_seconds() - begin;
  return arrived;
}

}  // namespace distca
