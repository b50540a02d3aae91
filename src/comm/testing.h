// For tests: a rank's fabric with something before every operation, which is where tests have ranks fail.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/fabric.h"

namespace distca::testing {

/// Called with an operation's name before it begins, and with "wait for " and the name before what was begun
/// is waited for. It may throw or sleep.
using BeforeOperation = std::function<void(const std::string& operation)>;

/// `fabric`, which must outlive it, with `before` in front of all its operations and those of the fabrics
/// made from it.
std::unique_ptr<Fabric> watched_fabric(Fabric& fabric, BeforeOperation before);

}  // namespace distca::testing
