// What the core at hand could do at most, to hold measured rates against.
#pragma once

#include <string>

namespace distca {

/// Floating-point operations per second of CPU time that independent float32 multiply-adds in registers reach
/// on the calling thread, measured for about 5 ms.
double multiply_add_rate();

/// How many sums run side by side there.
inline constexpr int kPeakSums = 12;
/// The same of one sum, each of whose steps waits for the one before.
double dependent_multiply_add_rate();

/// The instruction set that the CPU kernel uses here: "AVX3" is AVX-512.
std::string kernel_target();

}  // namespace distca
