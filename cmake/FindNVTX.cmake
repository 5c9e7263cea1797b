# Finds the headers of NVTX 3, by which tools like Nsight Systems are told of ranges; they need no library. Looks where
# FindNCCL looks, of which tools/setup_nccl.sh puts them into the same folder.
find_path(NVTX_INCLUDE_DIR NAMES nvtx3/nvToolsExt.h
  HINTS "${NVTX_ROOT}" "${NCCL_ROOT}" "$ENV{NCCL_ROOT}" "${CMAKE_CURRENT_SOURCE_DIR}/build/nccl" "$ENV{CUDA_HOME}"
    /usr/local/cuda
  PATH_SUFFIXES include nvidia/cu13/include nvidia/nvtx/include)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NVTX REQUIRED_VARS NVTX_INCLUDE_DIR)
if(NVTX_FOUND AND NOT TARGET NVTX::headers)
  add_library(NVTX::headers INTERFACE IMPORTED)
  set_target_properties(NVTX::headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${NVTX_INCLUDE_DIR}")
endif()
