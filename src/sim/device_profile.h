// What a device and its links can do, and how much of it training reaches: the constants from which every
// predicted second comes. A profile is a JSON file; those of the H100 and the H200 are part of the program.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace distca {

struct NetworkLink {
  double latency = 0;           // seconds a message takes besides its bytes
  double bytes_per_second = 0;  // of one device, in each direction at once
};

/// The constants that were fitted, all but the first startup to recorded iterations.
struct FittedConstants {
  double attention_startup_keys = 0;        // by which each query row costs more than the keys it sees
  double linear_efficiency = 0;             // share of peak flops that the layers' matrix products reach
  double attention_flops = 0;               // flops/s of core attention, forward and backward
  double gather_bytes_per_second = 0;       // of one device: context parallelism's gathering of K and V
  double update_seconds_per_parameter = 0;  // on a device: gradient reduction, optimizer, fixed overhead
  double planner_excess = 0;                // busiest server ÷ mean - 1 of the recorded planner's steps
};

struct DeviceProfile {
  std::string name, source;
  double peak_flops = 0;         // bf16, dense
  double memory_bytes = 0;       // of one device
  NetworkLink intra, inter;      // inside a node, between nodes
  double backward_factor = 2.5;  // of core attention: seconds backward ÷ forward
  double linear_backward = 2;    // of the layers' matrix products
  int64_t element_bytes = 2;     // of activations and what is exchanged
  FittedConstants fit;
  std::string fit_note;  // what was fitted to what, and how to do it again
};

/// A profile's JSON. Throws InputError that names `origin` and the field that is missing or can't be right.
DeviceProfile parse_device_profile(std::string_view text, const std::string& origin);

/// "h100" and "h200" are part of the program; anything else is a file.
DeviceProfile find_device_profile(const std::string& name);

/// The JSON that parse_device_profile reads, with grids of attention for planning (plan/profile.h).
std::string dump_device_profile(const DeviceProfile& profile);

}  // namespace distca
