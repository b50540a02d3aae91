// A profile file: measured seconds of attention tasks and of the layers around them on one device, and of
// links.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "plan/cost.h"
#include "plan/row_bytes.h"

namespace distca {

struct LinkTimes {
  double latency_s = 0, bytes_per_s = 0;
};

/// Links inside a node and between nodes.
struct Links {
  LinkTimes intra, inter;
};

/// Seconds of one layer's context-independent work of a model, by tokens. Empty where a profile has none.
struct LinearTimes {
  std::string model;            // a preset, or a config.json
  std::vector<int64_t> tokens;  // ascending
  std::vector<double> forward_s, backward_s;
};

/// Seconds at so many tokens: linear between the measured points; below and beyond them in proportion to
/// tokens.
double seconds_at(const std::vector<int64_t>& tokens, const std::vector<double>& seconds, int64_t rows);

class Profile {
 public:
  /// Throws InputError that names the file and the place of what is wrong.
  static Profile read(const std::string& path);
  static Profile parse(std::string_view text, const std::string& origin);

  const std::string& name() const { return name_; }

  /// Times of tasks with these heads, "forward" or "backward". Where the profile has other numbers of heads
  /// of the same dimension, seconds are scaled by query heads. A profile of fitted constants gives times by
  /// their formula: each query row costs its keys and `attention_startup_keys` more, at `attention_flops`.
  /// Throws InputError when no entry has the dimension.
  AttentionTimes attention(const LayerHeads& heads, const std::string& direction) const;

  const LinearTimes& linear() const { return linear_; }

  /// All 0 when the file has no links.
  const Links& links() const { return links_; }

 private:
  struct Entry {
    std::string direction;
    int64_t head_dim = 0, heads = 0, kv_heads = 0;
    AttentionTimes times;
  };

  AttentionTimes fitted(const LayerHeads& heads, const std::string& direction) const;

  std::string name_, origin_;
  double attention_flops_ = 0, startup_keys_ = 0, backward_factor_ = 2.5;  // of the fit, where there is one
  std::vector<Entry> entries_;
  LinearTimes linear_;
  Links links_;
};

}  // namespace distca
