#include "attend/packed_rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <vector>

#include "attend/flash_arguments.h"

namespace distca {

at::Tensor RowList::take(const at::Tensor& from) const {
  return index.defined() ? at::index_select(from, 0, index) : from.narrow(0, begin, count);
}

void RowList::put(const at::Tensor& to, const at::Tensor& values) const {
  at::Tensor target = to;
  if (index.defined()) {
    target.index_copy_(0, index, values.to(to.scalar_type()));
  } else {
    target.narrow(0, begin, count).copy_(values);
  }
}

void RowList::add(const at::Tensor& to, const at::Tensor& values) const {
  at::Tensor target = to;
  if (index.defined()) {
    target.index_add_(0, index, values.to(to.scalar_type()));
  } else {
    target.narrow(0, begin, count).add_(values);
  }
}

void RowList::fill(const at::Tensor& to, double value) const {
  at::Tensor target = to;
  if (index.defined()) {
    target.index_fill_(0, index, value);
  } else {
    target.narrow(0, begin, count).fill_(value);
  }
}

RowList make_row_list(std::span<const int64_t> rows) {
  RowList list;
  list.count = static_cast<int64_t>(rows.size());
  if (consecutive(rows)) {
    if (!rows.empty()) list.begin = rows.front();
    return list;
  }
  list.index = at::empty({list.count}, at::TensorOptions().dtype(at::kLong));
  std::copy(rows.begin(), rows.end(), list.index.data_ptr<int64_t>());
  return list;
}

PackedRows make_packed_rows(std::span<const int64_t> rows, int64_t first_rows) {
  PackedRows out;
  out.all = make_row_list(rows);
  std::array<std::vector<int64_t>, 2> own, places;
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t part = rows[i] < first_rows ? 0 : 1;
    own[part].push_back(rows[i] - (part == 0 ? 0 : first_rows));
    places[part].push_back(static_cast<int64_t>(i));
  }
  for (size_t part = 0; part < 2; ++part)
    out.parts[part] = {make_row_list(own[part]), make_row_list(places[part])};
  return out;
}

at::Tensor PackedRows::take(const RowPair& from) const {
  if (parts[1].own.count == 0) return parts[0].own.take(from.first);
  if (parts[0].own.count == 0) return parts[1].own.take(from.second);
  std::vector<int64_t> sizes = from.first.sizes().vec();
  sizes[0] = all.count;
  at::Tensor out = at::empty(sizes, from.first.options());
  parts[0].places.put(out, parts[0].own.take(from.first));
  parts[1].places.put(out, parts[1].own.take(from.second));
  return out;
}

void PackedRows::put(const RowPair& to, const at::Tensor& values) const {
  for (size_t part = 0; part < 2; ++part) {
    const auto& [own, places] = parts[part];
    if (own.count > 0) own.put(part == 0 ? to.first : to.second, places.take(values));
  }
}

void PackedRows::fill(const RowPair& to, double value) const {
  for (size_t part = 0; part < 2; ++part)
    if (parts[part].own.count > 0) parts[part].own.fill(part == 0 ? to.first : to.second, value);
}

PackedRows PackedRows::mapped(const TensorMap& map) const {
  PackedRows out = *this;
  for (RowList* list :
       {&out.all, &out.parts[0].own, &out.parts[0].places, &out.parts[1].own, &out.parts[1].places})
    if (list->index.defined()) list->index = map(list->index);
  return out;
}

}  // namespace distca
