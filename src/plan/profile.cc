#include "plan/profile.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/json.h"

namespace distca {
namespace {

const Json& member(const Json& object, const char* key, const std::string& place) {
  DISTCA_CHECK_INPUT(object.is_object() && object.contains(key), "{}: has no \"{}\"", place, key);
  return object[key];
}

template <typename T>
T value(const Json& object, const char* key, const std::string& place) {
  const Json& found = member(object, key, place);
  try {
    return found.get<T>();
  } catch (const Json::exception&) {
    throw InputError(format("{}: {} is {}, which is of the wrong kind", place, key, found.dump()));
  }
}

LinkTimes link(const Json& links, const char* key, const std::string& place) {
  const Json& found = member(links, key, place);
  const LinkTimes times{value<double>(found, "latency_s", place), value<double>(found, "bytes_per_s", place)};
  DISTCA_CHECK_INPUT(times.latency_s >= 0 && times.bytes_per_s > 0,
                     "{}: {} needs a latency_s and bytes_per_s above 0", place, key);
  return times;
}

LinearTimes linear_times(const Json& from, const std::string& place) {
  const LinearTimes times{value<std::string>(from, "model", place),
                          value<std::vector<int64_t>>(from, "tokens", place),
                          value<std::vector<double>>(from, "forward_s", place),
                          value<std::vector<double>>(from, "backward_s", place)};
  const size_t count = times.tokens.size();
  DISTCA_CHECK_INPUT(count > 0 && times.forward_s.size() == count && times.backward_s.size() == count,
                     "{}: tokens, forward_s and backward_s must be as many, and at least 1", place);
  for (size_t i = 0; i < count; ++i) {
    DISTCA_CHECK_INPUT(times.tokens[i] > (i == 0 ? 0 : times.tokens[i - 1]),
                       "{}: tokens aren't ascending at {}", place, times.tokens[i]);
    for (const double seconds : {times.forward_s[i], times.backward_s[i]})
      DISTCA_CHECK_INPUT(seconds > 0 && seconds < 1e6, "{}: a layer of {} seconds", place, seconds);
  }
  return times;
}

}  // namespace

double seconds_at(const std::vector<int64_t>& tokens, const std::vector<double>& seconds, int64_t rows) {
  const auto after = std::upper_bound(tokens.begin(), tokens.end(), rows);
  const auto i = static_cast<size_t>(after - tokens.begin());
  const auto at = [](int64_t value) { return static_cast<double>(value); };
  if (i == 0 || i == tokens.size()) {
    const size_t nearest = i == 0 ? 0 : i - 1;
    return seconds[nearest] * at(rows) / at(tokens[nearest]);
  }
  const double share = at(rows - tokens[i - 1]) / at(tokens[i] - tokens[i - 1]);
  return seconds[i - 1] + share * (seconds[i] - seconds[i - 1]);
}

Profile Profile::read(const std::string& path) {
  return parse(read_text(path), path);
}

Profile Profile::parse(std::string_view text, const std::string& origin) {
  const Json file = parse_json(text, origin);
  Profile profile;
  profile.origin_ = origin;
  profile.name_ = value<std::string>(file, "name", origin);
  if (file.contains("fit") && file["fit"].contains("attention_flops")) {
    profile.attention_flops_ = value<double>(file["fit"], "attention_flops", origin + ": fit");
    profile.startup_keys_ = value<double>(file["fit"], "attention_startup_keys", origin + ": fit");
    DISTCA_CHECK_INPUT(profile.attention_flops_ > 0 && profile.startup_keys_ >= 0,
                       "{}: fit: attention_flops must be above 0", origin);
    if (file.contains("device")) {
      profile.backward_factor_ = value<double>(file["device"], "backward_factor", origin + ": device");
    }
  }
  const bool measured = file.contains("attention") || profile.attention_flops_ == 0;
  const Json attention = measured ? member(file, "attention", origin) : Json::array();
  DISTCA_CHECK_INPUT(attention.is_array(), "{}: attention is not a list", origin);
  for (size_t i = 0; i < attention.size(); ++i) {
    const std::string place = format("{}: attention[{}]", origin, i);
    const Json& from = attention[i];
    Entry entry{value<std::string>(from, "direction", place),
                value<int64_t>(from, "head_dim", place),
                value<int64_t>(from, "heads", place),
                value<int64_t>(from, "kv_heads", place),
                {}};
    DISTCA_CHECK_INPUT(entry.heads > 0 && entry.kv_heads > 0 && entry.head_dim > 0,
                       "{}: heads must be above 0", place);
    entry.times.q = value<std::vector<int64_t>>(from, "q", place);
    entry.times.kv = value<std::vector<int64_t>>(from, "kv", place);
    entry.times.seconds = value<std::vector<std::vector<double>>>(from, "seconds", place);
    try {
      TaskCost{entry.times};
    } catch (const InputError& error) {
      throw InputError(format("{}: {}", place, error.what()));
    }
    profile.entries_.push_back(std::move(entry));
  }
  if (file.contains("linear")) profile.linear_ = linear_times(file["linear"], origin + ": linear");
  if (file.contains("links")) {
    profile.links_ = {link(file["links"], "intra", origin + ": links"),
                      link(file["links"], "inter", origin + ": links")};
  }
  return profile;
}

AttentionTimes Profile::fitted(const LayerHeads& heads, const std::string& direction) const {
  const double flops_of_pair = 4.0 * static_cast<double>(heads.heads * heads.head_dim) *
                               (direction == "backward" ? backward_factor_ : 1);
  AttentionTimes times;
  for (int64_t rows = kTileRows; rows <= int64_t{1} << 20; rows *= 2) times.q.push_back(rows);
  times.kv = times.q;
  for (const int64_t q : times.q) {
    times.seconds.emplace_back();
    for (const int64_t kv : times.kv) {
      const auto rows = static_cast<double>(q), keys = static_cast<double>(kv);
      // Bottom-right causal; with fewer keys than rows only the last rows see any.
      const double pairs = kv >= q ? rows * (keys - (rows - 1) / 2) : keys * (keys + 1) / 2;
      times.seconds.back().push_back((pairs + rows * startup_keys_) * flops_of_pair / attention_flops_);
    }
  }
  return times;
}

AttentionTimes Profile::attention(const LayerHeads& heads, const std::string& direction) const {
  if (entries_.empty() && attention_flops_ > 0) return fitted(heads, direction);
  const Entry* best = nullptr;
  for (const Entry& entry : entries_) {
    if (entry.direction != direction || entry.head_dim != heads.head_dim) continue;
    const auto distance = [&](const Entry& e) {
      return std::abs(e.heads - heads.heads) + std::abs(e.kv_heads - heads.kv_heads);
    };
    if (!best || distance(entry) < distance(*best)) best = &entry;
  }
  DISTCA_CHECK_INPUT(best, "{}: has no {} times for heads of dimension {}", origin_, direction,
                     heads.head_dim);
  AttentionTimes times = best->times;
  for (std::vector<double>& row : times.seconds) {
    for (double& seconds : row)
      seconds *= static_cast<double>(heads.heads) / static_cast<double>(best->heads);
  }
  return times;
}

}  // namespace distca
