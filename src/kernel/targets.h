// The instruction sets that the CPU kernel is compiled for: AVX-512, AVX2, NEON and plain code. The register
// tiles need vectors whose length is known when compiling. Include before Highway.
#pragma once

#include "hwy/detect_targets.h"

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
