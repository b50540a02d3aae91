# Flags that every target shares.
add_compile_options(-Wall -Wextra -Wno-unused-parameter)
# Planning must give the same integers from every compiler, so no fused multiply-add behind our back.
add_compile_options(-ffp-contract=off)

# GCC 12 sees overlapping copies in `"text" + std::string` where there are none (GCC bug 105651).
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)

# ccache takes precompiled headers only where it is told that no macro of a command line can change them.
find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE})
  # Paths from the build folder on, so that build folders side by side take each other's objects.
  execute_process(COMMAND ${CCACHE} --get-config=base_dir OUTPUT_VARIABLE ccache_base OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT ccache_base)
    list(INSERT CMAKE_CXX_COMPILER_LAUNCHER 3 CCACHE_BASEDIR=${PROJECT_SOURCE_DIR})
  endif()
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)
endif()

if(DISTCA_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=address,undefined)
elseif(DISTCA_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -g1)
  add_link_options(-fsanitize=thread)
elseif(DISTCA_SANITIZE)
  message(FATAL_ERROR "DISTCA_SANITIZE is '${DISTCA_SANITIZE}'; it takes address, thread, or nothing")
endif()
