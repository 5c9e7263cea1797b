# Finds LibTorch, ATen and c10 with their headers, and gives LibTorch::libtorch. Looks in SHARDPROOF_TORCH_ROOT, below
# Torch_DIR and CMAKE_PREFIX_PATH as they are given for PyTorch's own package file, and in build/python, where
# tools/setup_python.sh puts the Python package. That package file is not used: with a CUDA build it wants the whole
# CUDA toolkit and its compiler, and nothing here compiles CUDA. Nothing is cached: another folder can be named later.

set(libtorch_hints "${SHARDPROOF_TORCH_ROOT}" "$ENV{SHARDPROOF_TORCH_ROOT}")
if(Torch_DIR)  # .../torch/share/cmake/Torch
  list(APPEND libtorch_hints "${Torch_DIR}/../../..")
endif()
foreach(prefix IN LISTS CMAKE_PREFIX_PATH)  # the folder, or its share/cmake as torch.utils.cmake_prefix_path says
  list(APPEND libtorch_hints "${prefix}/../.." "${prefix}")
endforeach()
file(GLOB libtorch_packages "${CMAKE_CURRENT_SOURCE_DIR}/build/python/lib/python3*/site-packages/torch")
list(APPEND libtorch_hints ${libtorch_packages})

set(LibTorch_ROOT "")
set(LibTorch_VERSION "")
foreach(hint IN LISTS libtorch_hints)
  if(LibTorch_ROOT STREQUAL "" AND EXISTS "${hint}/include/ATen/ops/from_blob.h"
      AND EXISTS "${hint}/lib/libtorch_cpu.so" AND EXISTS "${hint}/lib/libc10.so")
    get_filename_component(LibTorch_ROOT "${hint}" ABSOLUTE)
  endif()
endforeach()
foreach(header include/torch/headeronly/version.h include/torch/csrc/api/include/torch/version.h)
  if(LibTorch_VERSION STREQUAL "" AND EXISTS "${LibTorch_ROOT}/${header}")
    file(STRINGS "${LibTorch_ROOT}/${header}" libtorch_version_lines
      REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
    string(REGEX MATCHALL "[0-9]+" LibTorch_VERSION "${libtorch_version_lines}")
    list(JOIN LibTorch_VERSION "." LibTorch_VERSION)
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS LibTorch_ROOT VERSION_VAR LibTorch_VERSION)

if(LibTorch_FOUND AND NOT TARGET LibTorch::libtorch)
  set(libtorch_libraries "${LibTorch_ROOT}/lib/libtorch_cpu.so" "${LibTorch_ROOT}/lib/libc10.so")
  # Kernels register themselves when their library is loaded: nothing refers to that of a CUDA build by name.
  if(EXISTS "${LibTorch_ROOT}/lib/libtorch_cuda.so")
    list(APPEND libtorch_libraries "-Wl,--no-as-needed" "${LibTorch_ROOT}/lib/libtorch_cuda.so" "-Wl,--as-needed")
  endif()
  # Its folder has headers of other libraries, too, fmt among them: those of the system come first.
  set(libtorch_options)
  foreach(folder include include/torch/csrc/api/include)
    list(APPEND libtorch_options "SHELL:-idirafter \"${LibTorch_ROOT}/${folder}\"")
  endforeach()
  add_library(LibTorch::libtorch INTERFACE IMPORTED)
  set_target_properties(LibTorch::libtorch PROPERTIES
    INTERFACE_COMPILE_OPTIONS "${libtorch_options}"
    INTERFACE_LINK_LIBRARIES "${libtorch_libraries}")
endif()
