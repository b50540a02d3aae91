// Which keys of a configuration a simulation goes by.
#pragma once

#include <string>
#include <vector>

#include "train/config.h"

namespace distca {

/// Throws InputError for a key that bears on a step but isn't modelled and differs from its default, and for
/// one of `set` ("section.key=value", given for this simulation alone) that doesn't enter it. What a file
/// says of training itself (train.lr, checkpoint.dir, …) passes: one file serves both.
void check_simulated(const Config& config, const std::vector<std::string>& set);

}  // namespace distca
