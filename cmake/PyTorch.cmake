# Target distca_torch: the PyTorch of a Python environment, CPU or CUDA build, with or without a CUDA toolkit.
# find_package(Torch) insists on a toolkit that matches a CUDA build, so the package is asked for its folder
# and linked directly.
set(DISTCA_PYTHON "${PROJECT_SOURCE_DIR}/.venv/bin/python" CACHE FILEPATH "the Python whose PyTorch is linked")
execute_process(
  COMMAND ${DISTCA_PYTHON} -c "import torch,os;print(os.path.dirname(torch.__file__)+';'+torch.__version__+';'+str(int(torch._C._GLIBCXX_USE_CXX11_ABI)))"
  OUTPUT_VARIABLE torch_answer OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE torch_failed ERROR_VARIABLE torch_error)
if(torch_failed)
  message(FATAL_ERROR "no PyTorch in ${DISTCA_PYTHON}: run scripts/install-deps, or set -DDISTCA_PYTHON=…\n${torch_error}")
endif()
list(GET torch_answer 0 torch_dir)
list(GET torch_answer 1 torch_version)
list(GET torch_answer 2 torch_abi)
if(torch_version VERSION_LESS 2.11)
  message(FATAL_ERROR "PyTorch ${torch_version} in ${DISTCA_PYTHON} is too old: 2.11 or newer is needed")
endif()
message(STATUS "PyTorch ${torch_version} in ${torch_dir}")

add_library(distca_torch INTERFACE)
target_include_directories(distca_torch SYSTEM INTERFACE
                           ${torch_dir}/include ${torch_dir}/include/torch/csrc/api/include)
# With the second, ATen's headers include the operators that they need, not all two thousand.
target_compile_definitions(distca_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=${torch_abi} AT_PER_OPERATOR_HEADERS)
target_link_directories(distca_torch INTERFACE ${torch_dir}/lib)
target_link_options(distca_torch INTERFACE -Wl,-rpath,${torch_dir}/lib)
target_link_libraries(distca_torch INTERFACE torch_cpu c10)
if(EXISTS ${torch_dir}/lib/libtorch_cuda.so)
  set(DISTCA_TORCH_CUDA ON)
  include(Cuda)
  target_compile_definitions(distca_torch INTERFACE DISTCA_CUDA=1)
  target_link_libraries(distca_torch INTERFACE -Wl,--no-as-needed torch_cuda c10_cuda -Wl,--as-needed distca_cuda)
endif()

set(DISTCA_TORCH_HEADERS ${DISTCA_STD_HEADERS} <ATen/TensorOperators.h> <ATen/core/grad_mode.h> <ATen/ops/cat.h> <ATen/ops/empty.h>
                         <ATen/ops/zeros.h>)
