// What machine a measurement was made on, as `bench --json` and `profile` say it.
#pragma once

#include "base/json.h"

namespace distca {

/// {"cpu", "cores", "os"}.
Json describe_machine();

}  // namespace distca
