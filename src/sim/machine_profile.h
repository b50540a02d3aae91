// A machine that `distca profile` measured, as the simulator sees one: its times become the constants of a
// device.
#pragma once

#include <cstdint>

#include "plan/profile.h"
#include "sim/device_profile.h"
#include "sim/model_shape.h"

namespace distca {

/// Attention: a row's seconds grow with the keys it sees and the start-up keys, fitted to the measured grid
/// with every task's relative error counting by its time; backward takes what it takes longer on the whole
/// grid. Layers: measured for chunks of `rows` tokens, in proportion to weights where another model was
/// measured, the output head's shared out over them. Elements are 4 bytes, a rank is one thread, the peak
/// is the faster of attention and layers, and an update costs nothing beside. Throws InputError for a profile
/// without layers or without attention of the model's head dimension.
DeviceProfile machine_profile(const Profile& measured, const ModelShape& model, int64_t measured_weights,
                              int64_t rows);

}  // namespace distca
