# The rooms that need more than the standard library and a few small ones.
include(PyTorch)
find_package(CLI11 REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(MPI COMPONENTS C REQUIRED)
find_library(HWY_LIBRARY hwy REQUIRED)
# Tokenizers of the field's models; without it bytes are the one tokenizer.
find_library(SENTENCEPIECE_LIBRARY sentencepiece)
find_library(SENTENCEPIECE_TRAIN_LIBRARY sentencepiece_train)
add_library(distca_sentencepiece INTERFACE)
if(SENTENCEPIECE_LIBRARY)
  target_link_libraries(distca_sentencepiece INTERFACE ${SENTENCEPIECE_LIBRARY})
  target_compile_definitions(distca_sentencepiece INTERFACE DISTCA_SENTENCEPIECE)
endif()

distca_room(kernel ROOMS base LINK ${HWY_LIBRARY})
distca_room(comm ROOMS base LINK MPI::MPI_C)
if(DISTCA_TORCH_CUDA)
  # Apart from the room, which stands on the standard library: a device, NCCL, and ranks that are processes.
  file(GLOB comm_cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/comm/cuda/*.cc)
  add_library(distca_comm_cuda STATIC ${comm_cuda_sources})
  target_link_libraries(distca_comm_cuda PUBLIC distca_comm distca_torch)
endif()
distca_room(attend ROOMS plan kernel comm LINK distca_torch)
distca_room(model ROOMS attend)
distca_room(train ROOMS model LINK tomlplusplus::tomlplusplus distca_sentencepiece
            LONG exactness_test lost_server_test)
distca_room(cli ROOMS plan sim kernel comm attend model train LINK CLI11::CLI11)

foreach(room attend model train)
  distca_precompile_torch(${room} attend)
endforeach()

if(TARGET train_test AND SENTENCEPIECE_TRAIN_LIBRARY)
  target_link_libraries(train_test PRIVATE ${SENTENCEPIECE_TRAIN_LIBRARY})
endif()
if(TARGET distca_cli)
  # Every file makes CLI11's parser anew, and none of them computes.
  target_compile_options(distca_cli PRIVATE $<$<CONFIG:Release>:-O1>)
  add_executable(distca src/cli/main.cc)
  target_link_libraries(distca PRIVATE distca_cli)
  set_target_properties(distca PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
endif()
