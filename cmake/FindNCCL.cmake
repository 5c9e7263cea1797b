# Finds NCCL and the CUDA runtime, each a header and a library, and gives NCCL::headers for what is compiled, and
# NCCL::nccl and NCCL::cudart, which tests alone link: the product loads the libraries when they are needed. Looks below
# NCCL_ROOT, where tools/setup_nccl.sh puts them, in the CUDA toolkit and in the system. The wheels have no libnccl.so,
# so the library is named in full.

set(nccl_hints "${NCCL_ROOT}" "$ENV{NCCL_ROOT}" "${CMAKE_CURRENT_SOURCE_DIR}/build/nccl")
set(nccl_suffixes nvidia/nccl nvidia/cu13)
list(TRANSFORM nccl_suffixes APPEND /include OUTPUT_VARIABLE nccl_include_suffixes)
list(TRANSFORM nccl_suffixes APPEND /lib OUTPUT_VARIABLE nccl_library_suffixes)
find_path(NCCL_INCLUDE_DIR NAMES nccl.h HINTS ${nccl_hints} PATH_SUFFIXES include ${nccl_include_suffixes})
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR HINTS ${nccl_hints}
  PATH_SUFFIXES lib ${nccl_library_suffixes})
# The runtime and the part of its headers below crt/ are packages of their own.
find_path(NCCL_CUDA_INCLUDE_DIR NAMES cuda_runtime_api.h HINTS ${nccl_hints} "$ENV{CUDA_HOME}" /usr/local/cuda
  PATH_SUFFIXES include ${nccl_include_suffixes})
find_library(NCCL_CUDA_LIBRARY NAMES cudart libcudart.so.13 libcudart.so.12 NAMES_PER_DIR HINTS ${nccl_hints}
  "$ENV{CUDA_HOME}" /usr/local/cuda
  PATH_SUFFIXES lib lib64 ${nccl_library_suffixes})
if(NCCL_CUDA_INCLUDE_DIR AND NOT EXISTS "${NCCL_CUDA_INCLUDE_DIR}/crt/host_defines.h")
  set(NCCL_CUDA_INCLUDE_DIR "NCCL_CUDA_INCLUDE_DIR-NOTFOUND")
endif()

if(NCCL_INCLUDE_DIR)
  file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" nccl_version_lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  string(REGEX MATCHALL "[0-9]+" NCCL_VERSION "${nccl_version_lines}")
  list(JOIN NCCL_VERSION "." NCCL_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL
  REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR NCCL_CUDA_LIBRARY NCCL_CUDA_INCLUDE_DIR VERSION_VAR NCCL_VERSION)

if(NCCL_FOUND AND NOT TARGET NCCL::nccl)
  # nccl.h includes the headers of CUDA's small number types, which nothing in it uses, which take most of the time of a
  # compilation and which need the headers of one more package: their include guards leave them out.
  add_library(NCCL::headers INTERFACE IMPORTED)
  set_target_properties(NCCL::headers PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR};${NCCL_CUDA_INCLUDE_DIR}"
    INTERFACE_COMPILE_DEFINITIONS "__CUDA_FP16_H__;__CUDA_BF16_H__;__CUDA_FP8_H__")
  add_library(NCCL::cudart UNKNOWN IMPORTED)
  set_target_properties(NCCL::cudart PROPERTIES IMPORTED_LOCATION "${NCCL_CUDA_LIBRARY}")
  add_library(NCCL::nccl UNKNOWN IMPORTED)
  set_target_properties(NCCL::nccl PROPERTIES
    IMPORTED_LOCATION "${NCCL_LIBRARY}" INTERFACE_LINK_LIBRARIES "NCCL::cudart")
endif()
