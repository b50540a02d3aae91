#include "comm/fabric.h"

#include "base/clock.h"

namespace distca {

double Fabric::now() {
  return wall_seconds();
}

Survivors Fabric::survivors(const std::string& name) {
  throw Error(format("ranks of the kind {} can't go on without another: {}", kind(), name));
}

}  // namespace distca
