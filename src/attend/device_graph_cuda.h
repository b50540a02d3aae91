// CUDA graphs, in builds that have CUDA.
#pragma once

#include <memory>

#include "attend/device_graph.h"

namespace distca {

std::unique_ptr<GraphPool> make_cuda_graph_pool(at::Device device);

}  // namespace distca
