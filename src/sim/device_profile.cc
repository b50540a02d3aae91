#include "sim/device_profile.h"

#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "sim/shipped_profiles.h"

namespace distca {
namespace {

/// Reads numbers of one object and names the field that is wrong.
class Fields {
 public:
  Fields(const Json& object, std::string place) : object_(object), place_(std::move(place)) {
    DISTCA_CHECK_INPUT(object.is_object(), "{}: is not an object", place_);
  }

  Fields child(const char* name) const { return {value(name), place_ + ": " + name}; }

  std::string text(const char* name) const {
    DISTCA_CHECK_INPUT(value(name).is_string(), "{}: {} is not a text", place_, name);
    return value(name).get<std::string>();
  }

  /// At least 0; above 0 with `positive`.
  double number(const char* name, bool positive = true) const {
    DISTCA_CHECK_INPUT(value(name).is_number(), "{}: {} is not a number", place_, name);
    const double number = value(name).get<double>();
    DISTCA_CHECK_INPUT(positive ? number > 0 : number >= 0, "{}: {} is {}: it must be {}", place_, name,
                       number, positive ? "above 0" : "at least 0");
    return number;
  }

 private:
  const Json& value(const char* name) const {
    DISTCA_CHECK_INPUT(object_.contains(name), "{}: {} is missing", place_, name);
    return object_[name];
  }

  const Json& object_;
  std::string place_;
};

NetworkLink link(const Fields& fields) {
  return {fields.number("latency_s", false), fields.number("bytes_per_s")};
}

Json link_json(const NetworkLink& link) {
  return {{"latency_s", link.latency}, {"bytes_per_s", link.bytes_per_second}};
}

/// Seconds of bottom-right causal tasks by query and key rows, for eight heads of 128: what the constants
/// come to, for planners that read grids (plan/profile.h).
Json attention_grid(const DeviceProfile& profile, const char* direction) {
  constexpr int64_t kHeadDim = 128, kHeads = 8;
  const bool backward = std::string_view(direction) == "backward";
  const double second =
      4.0 * kHeadDim * kHeads / profile.fit.attention_flops * (backward ? profile.backward_factor : 1);
  std::vector<int64_t> q, kv;
  for (int64_t rows = 128; rows <= 1 << 17; rows *= 2) q.push_back(rows);
  for (int64_t rows = 128; rows <= 1 << 19; rows *= 2) kv.push_back(rows);
  Json seconds = Json::array();
  for (const int64_t rows : q) {
    Json row = Json::array();
    for (const int64_t keys : kv) {
      const auto r = static_cast<double>(rows), k = static_cast<double>(keys);
      const double mean = keys >= rows ? k - (r - 1) / 2 : k * (k + 1) / 2 / r;
      row.push_back(r * (mean + profile.fit.attention_startup_keys) * second);
    }
    seconds.push_back(std::move(row));
  }
  return {{"direction", direction},
          {"head_dim", kHeadDim},
          {"heads", kHeads},
          {"kv_heads", 1},
          {"q", q},
          {"kv", kv},
          {"seconds", std::move(seconds)}};
}

}  // namespace

DeviceProfile parse_device_profile(std::string_view text, const std::string& origin) {
  const Json json = parse_json(text, origin);
  const Fields fields(json, origin), device = fields.child("device"), links = fields.child("links"),
                                     fit = fields.child("fit");
  DeviceProfile profile;
  profile.name = fields.text("name");
  profile.source = fields.text("source");
  profile.peak_flops = device.number("peak_flops");
  profile.memory_bytes = device.number("memory_bytes");
  profile.backward_factor = device.number("backward_factor");
  profile.intra = link(links.child("intra"));
  profile.inter = link(links.child("inter"));
  profile.fit.attention_startup_keys = fit.number("attention_startup_keys", false);
  profile.fit.linear_efficiency = fit.number("linear_efficiency");
  profile.fit.attention_flops = fit.number("attention_flops");
  profile.fit.gather_bytes_per_second = fit.number("gather_bytes_per_s");
  profile.fit.update_seconds_per_parameter = fit.number("update_s_per_parameter", false);
  profile.fit.planner_excess = fit.number("planner_excess", false);
  profile.fit_note = fit.text("note");
  return profile;
}

DeviceProfile find_device_profile(const std::string& name) {
  if (name == "h100") return parse_device_profile(kH100Profile, "profile h100");
  if (name == "h200") return parse_device_profile(kH200Profile, "profile h200");
  DISTCA_CHECK_INPUT(name.find_first_of("./") != std::string::npos,
                     "profile '{}' is neither h100, h200 nor a file", name);
  return parse_device_profile(read_text(name), name);
}

std::string dump_device_profile(const DeviceProfile& profile) {
  const Json json = {{"name", profile.name},
                     {"source", profile.source},
                     {"device",
                      {{"peak_flops", profile.peak_flops},
                       {"memory_bytes", profile.memory_bytes},
                       {"backward_factor", profile.backward_factor}}},
                     {"attention", {attention_grid(profile, "forward"), attention_grid(profile, "backward")}},
                     {"links", {{"intra", link_json(profile.intra)}, {"inter", link_json(profile.inter)}}},
                     {"fit",
                      {{"attention_startup_keys", profile.fit.attention_startup_keys},
                       {"linear_efficiency", profile.fit.linear_efficiency},
                       {"attention_flops", profile.fit.attention_flops},
                       {"gather_bytes_per_s", profile.fit.gather_bytes_per_second},
                       {"update_s_per_parameter", profile.fit.update_seconds_per_parameter},
                       {"planner_excess", profile.fit.planner_excess},
                       {"note", profile.fit_note}}}};
  return json.dump() + "\n";
}

}  // namespace distca
