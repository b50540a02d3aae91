# -DDISTCA_MINIMAL=ON: attend/ and what it stands on, as libraries that need PyTorch and the standard library alone. Left out is
# what reads or writes JSON, logs, or needs Highway or MPI: of the attention kernels, the fast one for CPUs.
include(PyTorch)
set(DISTCA_TESTS OFF)
set(DISTCA_LEFT_OUT
    base/chrome_trace base/json base/log
    plan/documents plan/plan_json plan/profile
    kernel/cpu kernel/cpu_backward kernel/cpu_forward kernel/peak
    comm/mpi comm/mpi_call comm/mpi_engine comm/mpi_transport
    attend/attention_bench attend/attention_profile attend/cpu_kernel)

distca_room(base LINK Threads::Threads)
distca_room(plan ROOMS base)
distca_room(kernel ROOMS base)
distca_room(comm ROOMS base)
distca_room(attend ROOMS plan kernel comm LINK distca_torch)
set_source_files_properties(src/attend/attention_kernel.cc PROPERTIES COMPILE_DEFINITIONS DISTCA_MINIMAL)
distca_precompile(distca_attend distca_attend ${DISTCA_TORCH_HEADERS})

add_executable(minimal_layer tests/minimal_layer.cc)
target_link_libraries(minimal_layer PRIVATE distca_attend)
