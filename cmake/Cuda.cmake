# Target distca_cuda: headers and libraries of the CUDA runtime and of NCCL, for g++ alone. They come from the packages that a
# CUDA build of PyTorch stands on, wherever Python finds these (nvidia/cu13/include, nvidia/cuda_runtime/include, …), or else from an
# installed toolkit.
execute_process(
  COMMAND ${DISTCA_PYTHON} -c "import glob,nvidia;print(';'.join(f for r in nvidia.__path__ for n in ('include','include/cccl','lib') for f in sorted(glob.glob(r+'/*/'+n))))"
  OUTPUT_VARIABLE folders OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
set(includes ${folders})
list(FILTER includes EXCLUDE REGEX "/lib$")
list(FILTER folders INCLUDE REGEX "/lib$")

function(distca_find_cuda result kind)
  if(kind STREQUAL "header")
    find_path(${result} NAMES ${ARGN} HINTS ${includes} $ENV{CUDA_HOME}/include /usr/local/cuda/include)
  else()
    find_library(${result} NAMES ${ARGN} NAMES_PER_DIR HINTS ${folders} $ENV{CUDA_HOME}/lib64 /usr/local/cuda/lib64)
  endif()
  if(NOT ${result})
    message(FATAL_ERROR "PyTorch ${torch_version} is a CUDA build, but there is no ${ARGN} beside it or in a CUDA toolkit: scripts/install-deps --gpu "
                        "installs what is missing")
  endif()
endfunction()
distca_find_cuda(CUDA_RUNTIME_INCLUDE header cuda_runtime_api.h)
distca_find_cuda(CUDA_CRT_INCLUDE header crt/host_defines.h)
distca_find_cuda(CUDA_CCCL_INCLUDE header nv/target)
distca_find_cuda(NCCL_INCLUDE header nccl.h)
distca_find_cuda(CUDA_RUNTIME_LIBRARY library libcudart.so.13 libcudart.so.12 cudart)
distca_find_cuda(NCCL_LIBRARY library libnccl.so.2 nccl)

add_library(distca_cuda INTERFACE)
# A toolkit's folder holds more than CUDA; a package's is searched whole, as it stands on those of others.
target_include_directories(distca_cuda SYSTEM INTERFACE ${CUDA_RUNTIME_INCLUDE} ${CUDA_CRT_INCLUDE} ${CUDA_CCCL_INCLUDE}
                           ${NCCL_INCLUDE} ${includes})
target_link_libraries(distca_cuda INTERFACE ${NCCL_LIBRARY} ${CUDA_RUNTIME_LIBRARY})
foreach(library ${NCCL_LIBRARY} ${CUDA_RUNTIME_LIBRARY})
  get_filename_component(folder ${library} DIRECTORY)
  target_link_options(distca_cuda INTERFACE -Wl,-rpath,${folder})
endforeach()
