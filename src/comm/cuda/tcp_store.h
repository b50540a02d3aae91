// The ranks' table of strings over TCP, for ranks that are processes.
#pragma once

#include <memory>

#include "comm/launch.h"
#include "comm/store.h"

namespace distca {

/// Reaches the table at launched.host and launched.port, which rank 0 keeps here unless the launcher does.
/// Throws Error that names the place when it can't be reached within `timeout_s`.
std::shared_ptr<Store> make_tcp_store(const LaunchedRank& launched, double timeout_s);

}  // namespace distca
