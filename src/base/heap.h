// What the process does with memory that it has freed.
#pragma once

namespace distca {

/// From now on freed memory stays with the process, for the next step to take again, and the kernel is asked
/// for large pages. Without it the memory of large tensors goes back to the kernel when they do, and each new
/// one pays for its pages again, in CPU time of the operation that touches them first: much and unevenly on
/// virtual machines, whose host has to find the pages too. For programs, before they start threads; nothing
/// where the C library isn't glibc, or a sanitizer stands in for it.
void keep_freed_memory();

}  // namespace distca
