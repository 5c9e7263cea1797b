# Finds the headers of CUPTI 13, which tells what GPUs do kernel by kernel, and, for the message and the place where it
# is looked for at run time, its library, which nothing is linked with. It needs headers of CUDA, which FindNCCL finds.
# Looks where that looks, and where the CUDA toolkit has it.
find_path(CUPTI_INCLUDE_DIR NAMES cupti_activity.h
  HINTS "${CUPTI_ROOT}" "${NCCL_ROOT}" "$ENV{NCCL_ROOT}" "${CMAKE_CURRENT_SOURCE_DIR}/build/nccl" "$ENV{CUDA_HOME}"
    /usr/local/cuda /usr/local/cuda/extras/CUPTI
  PATH_SUFFIXES include nvidia/cu13/include extras/CUPTI/include)
find_library(CUPTI_LIBRARY NAMES libcupti.so.13 cupti NAMES_PER_DIR
  HINTS "${CUPTI_ROOT}" "${NCCL_ROOT}" "$ENV{NCCL_ROOT}" "${CMAKE_CURRENT_SOURCE_DIR}/build/nccl" "$ENV{CUDA_HOME}"
    /usr/local/cuda /usr/local/cuda/extras/CUPTI
  PATH_SUFFIXES lib lib64 nvidia/cu13/lib extras/CUPTI/lib64)
if(CUPTI_INCLUDE_DIR AND EXISTS "${CUPTI_INCLUDE_DIR}/cupti_version.h")
  file(STRINGS "${CUPTI_INCLUDE_DIR}/cupti_version.h" cupti_version_line REGEX "#define CUPTI_API_VERSION +[0-9]+")
  string(REGEX MATCH "[0-9]+" cupti_version "${cupti_version_line}")
  math(EXPR cupti_major "${cupti_version} / 10000")  # 0 before 13
  math(EXPR cupti_minor "${cupti_version} / 100 % 100")
  set(CUPTI_VERSION "${cupti_major}.${cupti_minor}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CUPTI
  REQUIRED_VARS CUPTI_INCLUDE_DIR NCCL_CUDA_INCLUDE_DIR VERSION_VAR CUPTI_VERSION)
if(CUPTI_FOUND AND NOT TARGET CUPTI::headers)
  add_library(CUPTI::headers INTERFACE IMPORTED)
  set_target_properties(CUPTI::headers PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${CUPTI_INCLUDE_DIR};${NCCL_CUDA_INCLUDE_DIR}")
endif()
