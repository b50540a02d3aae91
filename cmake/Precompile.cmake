# Headers that many files parse for seconds are parsed once. -DDISTCA_PRECOMPILE=OFF shows whether every file includes what it
# needs.
option(DISTCA_PRECOMPILE "precompile headers that many files include" ON)

# distca_precompile(TARGET FROM header …): for TARGET, which is compiled with the flags of FROM. The headers are those of FROM
# where that is another target.
function(distca_precompile target from)
  if(NOT DISTCA_PRECOMPILE OR NOT TARGET ${target})
    return()
  endif()
  if(target STREQUAL from)
    target_precompile_headers(${target} PRIVATE ${ARGN})
  else()
    target_precompile_headers(${target} REUSE_FROM ${from})
  endif()
endfunction()

set(DISTCA_STD_HEADERS <algorithm> <cstdint> <functional> <memory> <string> <vector>)
set(DISTCA_TEST_HEADERS ${DISTCA_STD_HEADERS} <gmock/gmock.h> <gtest/gtest.h>)
