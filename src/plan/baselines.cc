#include "plan/baselines.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace distca {
namespace {

/// Lengths, as shares of a group's tokens, from which documents are outliers of one class and the next.
constexpr double kOutlierShares[] = {0.5, 0.75};

void check_groups(const Layout& layout, int32_t cp) {
  DISTCA_CHECK_INPUT(cp >= 1 && layout.ranks % cp == 0,
                     "{} ranks don't form groups of {} for context parallelism", layout.ranks, cp);
}

/// Documents of each group of `cp` ranks, in the order of their rows.
std::vector<std::vector<int32_t>> documents_of_groups(const Layout& layout, int32_t cp) {
  std::vector<const Shard*> firsts;
  for (const Shard& shard : layout.shards) {
    if (shard.tokens.begin == 0) firsts.push_back(&shard);
  }
  std::sort(firsts.begin(), firsts.end(), [](const Shard* a, const Shard* b) {
    return a->home != b->home ? a->home < b->home : a->row < b->row;
  });
  std::vector<std::vector<int32_t>> groups(static_cast<size_t>(layout.ranks / cp));
  for (const Shard* shard : firsts) groups[static_cast<size_t>(shard->home / cp)].push_back(shard->doc);
  return groups;
}

/// Gathers runs of documents on ranks and gives them rows in the order in which they come.
class LayoutBuilder {
 public:
  explicit LayoutBuilder(const Layout& packed)
      : layout_{packed.doc_lengths, packed.ranks, 1, {}}, next_row_(static_cast<size_t>(packed.ranks), 0) {}

  void add(int32_t doc, Span tokens, int32_t rank) {
    if (tokens.empty()) return;
    int64_t& row = next_row_[static_cast<size_t>(rank)];
    layout_.shards.push_back({doc, tokens, rank, row});
    row += tokens.size();
    layout_.rows = std::max(layout_.rows, row);
  }

  Layout finish() {
    std::sort(layout_.shards.begin(), layout_.shards.end(), [](const Shard& a, const Shard& b) {
      return a.doc != b.doc ? a.doc < b.doc : a.tokens.begin < b.tokens.begin;
    });
    return std::move(layout_);
  }

 private:
  Layout layout_;
  std::vector<int64_t> next_row_;
};

/// Slice `i` of 2·cp of [0, length).
Span slice_of(int64_t length, int32_t cp, int32_t i) {
  const int64_t size = (length + 2 * cp - 1) / (2 * cp);
  return {std::min(length, i * size), std::min(length, (i + 1) * size)};
}

Layout head_tail_per_document(const Layout& packed, const std::vector<std::vector<int32_t>>& groups,
                              int32_t cp) {
  LayoutBuilder builder(packed);
  for (size_t group = 0; group < groups.size(); ++group) {
    for (const int32_t doc : groups[group]) {
      const int64_t length = packed.doc_lengths[static_cast<size_t>(doc)];
      for (int32_t i = 0; i < cp; ++i) {
        const auto rank = static_cast<int32_t>(group) * cp + i;
        builder.add(doc, slice_of(length, cp, i), rank);
        builder.add(doc, slice_of(length, cp, 2 * cp - 1 - i), rank);
      }
    }
  }
  return builder.finish();
}

}  // namespace

Layout context_parallel_layout(const Layout& packed, int32_t cp) {
  check_groups(packed, cp);
  return head_tail_per_document(packed, documents_of_groups(packed, cp), cp);
}

Layout sequence_parallel_layout(const Layout& packed, int32_t cp) {
  check_groups(packed, cp);
  LayoutBuilder builder(packed);
  const std::vector<std::vector<int32_t>> groups = documents_of_groups(packed, cp);
  for (size_t group = 0; group < groups.size(); ++group) {
    int64_t rows = 0;
    for (const int32_t doc : groups[group]) rows += packed.doc_lengths[static_cast<size_t>(doc)];
    for (int32_t i = 0; i < cp; ++i) {
      for (const int32_t slice : {i, 2 * cp - 1 - i}) {
        const Span wanted = slice_of(rows, cp, slice);
        int64_t at = 0;
        for (const int32_t doc : groups[group]) {
          const int64_t length = packed.doc_lengths[static_cast<size_t>(doc)];
          const Span tokens{std::max<int64_t>(0, wanted.begin - at), std::min(length, wanted.end - at)};
          builder.add(doc, tokens, static_cast<int32_t>(group) * cp + i);
          at += length;
        }
      }
    }
  }
  return builder.finish();
}

Layout grouped_layout(const std::vector<int64_t>& doc_lengths,
                      const std::vector<std::vector<int32_t>>& groups, int32_t cp) {
  Layout packed;
  packed.doc_lengths = doc_lengths;
  packed.ranks = static_cast<int32_t>(groups.size()) * cp;
  return head_tail_per_document(packed, groups, cp);
}

Layout wlb_layout(const Layout& packed, int32_t cp) {
  check_groups(packed, cp);
  WlbPacker packer(packed.ranks / cp, packed.rows * cp);
  std::vector<WlbPacker::Document> documents;
  for (size_t doc = 0; doc < packed.doc_lengths.size(); ++doc) {
    documents.push_back({static_cast<int64_t>(doc), packed.doc_lengths[doc]});
  }
  std::vector<std::vector<int32_t>> groups;
  for (const auto& group : packer.pack(std::move(documents), true)) {
    groups.emplace_back();
    for (const WlbPacker::Document& document : group)
      groups.back().push_back(static_cast<int32_t>(document.id));
  }
  return head_tail_per_document(packed, groups, cp);
}

double wlb_workload(int64_t length) {
  const auto tokens = static_cast<double>(length);
  return tokens + tokens * tokens / 65536;
}

WlbPacker::WlbPacker(int32_t groups, int64_t tokens, double cap)
    : groups_(groups),
      tokens_(tokens),
      cap_(static_cast<int64_t>(cap * static_cast<double>(tokens))),
      outliers_(std::size(kOutlierShares)) {}

int64_t WlbPacker::waiting() const {
  int64_t count = static_cast<int64_t>(held_back_.size());
  for (const auto& queue : outliers_) count += static_cast<int64_t>(queue.size());
  return count;
}

int64_t WlbPacker::outlier_class(int64_t length) const {
  int64_t found = -1;
  for (const double share : kOutlierShares)
    found += static_cast<double>(length) > share * static_cast<double>(tokens_);
  return found;
}

void WlbPacker::release_outliers(bool flush, std::vector<Document>& ready) {
  for (std::deque<Document>& queue : outliers_) {
    while (flush ? !queue.empty() : static_cast<int64_t>(queue.size()) >= groups_) {
      for (int32_t i = 0; i < groups_ && !queue.empty(); ++i) {
        ready.push_back(queue.front());
        queue.pop_front();
      }
      if (!flush) break;
    }
  }
}

std::vector<std::vector<WlbPacker::Document>> WlbPacker::pack(std::vector<Document> arrived, bool flush) {
  std::vector<Document> ready = std::move(held_back_);
  held_back_.clear();
  for (const Document& document : arrived) {
    const int64_t outlier = outlier_class(document.length);
    if (outlier >= 0) {
      outliers_[static_cast<size_t>(outlier)].push_back(document);
    } else {
      ready.push_back(document);
    }
  }
  release_outliers(flush, ready);
  std::stable_sort(ready.begin(), ready.end(),
                   [](const Document& a, const Document& b) { return a.length > b.length; });
  std::vector<std::vector<Document>> packed(static_cast<size_t>(groups_));
  std::vector<double> workload(packed.size(), 0);
  std::vector<int64_t> tokens(packed.size(), 0);
  for (const Document& document : ready) {
    size_t group = static_cast<size_t>(std::min_element(workload.begin(), workload.end()) - workload.begin());
    if (tokens[group] + document.length > cap_) {
      group = static_cast<size_t>(std::min_element(tokens.begin(), tokens.end()) - tokens.begin());
      if (tokens[group] + document.length > cap_ && !flush && !packed[group].empty()) {
        held_back_.push_back(document);
        continue;
      }
    }
    packed[group].push_back(document);
    workload[group] += wlb_workload(document.length);
    tokens[group] += document.length;
  }
  return packed;
}

Traffic all_gather_traffic(const Layout& layout, int32_t cp, const RowBytes& bytes) {
  Traffic traffic;
  traffic.ranks.resize(static_cast<size_t>(layout.ranks));
  const std::vector<int64_t> tokens = layout.tokens_of_ranks();
  for (size_t first = 0; first < tokens.size(); first += static_cast<size_t>(cp)) {
    const int64_t group = std::accumulate(tokens.begin() + static_cast<int64_t>(first),
                                          tokens.begin() + static_cast<int64_t>(first) + cp, int64_t{0});
    for (size_t rank = first; rank < first + static_cast<size_t>(cp); ++rank) {
      traffic.ranks[rank].send = tokens[rank] * (cp - 1) * bytes.kv();
      traffic.ranks[rank].receive = (group - tokens[rank]) * bytes.kv();
      traffic.k += (group - tokens[rank]) * bytes.k;
      traffic.v += (group - tokens[rank]) * bytes.v;
    }
  }
  return traffic;
}

}  // namespace distca
