// Clocks in seconds.
#pragma once

namespace distca {

/// Time that passes for everyone; only differences mean something.
double wall_seconds();

/// Time the calling thread has spent on a core.
double thread_cpu_seconds();

}  // namespace distca
