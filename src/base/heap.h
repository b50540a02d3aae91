// What the process does with memory that it has freed.
#pragma once

namespace distca {

/// From now on freed memory stays with the process, for the next step to take again, and the kernel is asked
/// for large pages. Without it the memory of large tensors goes back to the kernel when they do, and each new
/// one pays for its pages again: a tenth of a training step's CPU time, or several times that on a virtual
/// machine whose host has lent them to others. For programs, before they start threads; where the C library
/// isn't glibc, or a sanitizer stands in for it, nothing.
void keep_freed_memory();

}  // namespace distca
