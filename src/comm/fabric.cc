#include "comm/fabric.h"

#include "base/clock.h"

namespace distca {

double Fabric::now() {
  return wall_seconds();
}

}  // namespace distca
