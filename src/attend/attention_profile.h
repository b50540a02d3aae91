// What core attention and an exchange cost on this machine, measured: the numbers that planning takes task
// costs from.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "kernel/attention.h"
#include "plan/cost.h"

namespace distca {

/// Seconds of one task of q query rows and kv keys, bottom-right causal, all heads: on one thread in float32,
/// or on a CUDA device in bfloat16 as a part of a call that fills the device. Where kv < q, of the unmasked
/// task of q rows that has as many pairs, q · (kv − (q − 1) / 2).
struct AttentionGrid {
  std::string direction;  // "forward", "backward"
  AttentionShape shape;
  AttentionTimes times;
};

/// How far interpolation is from tasks that are not on the grid: |predicted ÷ measured − 1|.
struct ProfileFit {
  int64_t points = 0;
  double median_error = 0, p90_error = 0, max_error = 0;
};

struct AttentionProfile {
  std::vector<AttentionGrid> grids;
  ProfileFit fit;
};

struct ProfileOptions {
  at::Device device = at::kCPU;
  bool quick = false;
  uint64_t seed = 1;  // of the points that the fit is checked at
};

/// `progress` gets the part that is done, from 0 to 1. On the CPU each point is measured beside a
/// multiply-add loop and scaled to the loop's median rate. Each counts as the least of 4 to 15 passes over
/// all points, until one finds none more than 3% faster or a minute has gone by, for each direction: a core
/// that slows down for a while leaves no dent.
AttentionProfile profile_attention(const AttentionShape& shape, const ProfileOptions& options,
                                   const std::function<void(double)>& progress);

struct LinkProfile {
  double latency_s = 0, bytes_per_s = 0;
};

/// Two thread ranks that exchange with each other: the time of an almost empty exchange, and the rate of a
/// large one in each direction.
LinkProfile profile_thread_link(const ProfileOptions& options);

}  // namespace distca
