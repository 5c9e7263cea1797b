# Finds oneDNN by its header and library and gives the target oneDNN::dnnl. Debian's own package file is not used: it
# stops the configuration of every project on a machine without OpenCL headers, which nothing here needs.

find_path(oneDNN_INCLUDE_DIR NAMES dnnl.h)
find_library(oneDNN_LIBRARY NAMES dnnl)
if(oneDNN_INCLUDE_DIR)
  foreach(header dnnl_version.h oneapi/dnnl/dnnl_version.h)
    if(EXISTS "${oneDNN_INCLUDE_DIR}/${header}")
      file(STRINGS "${oneDNN_INCLUDE_DIR}/${header}" onednn_version_lines
        REGEX "DNNL_VERSION_(MAJOR|MINOR|PATCH) +[0-9]+")
    endif()
  endforeach()
  string(REGEX REPLACE "[^0-9]+" "." oneDNN_VERSION "${onednn_version_lines}")
  string(REGEX REPLACE "^\\.|\\.$" "" oneDNN_VERSION "${oneDNN_VERSION}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(oneDNN REQUIRED_VARS oneDNN_LIBRARY oneDNN_INCLUDE_DIR VERSION_VAR oneDNN_VERSION)

if(oneDNN_FOUND AND NOT TARGET oneDNN::dnnl)
  add_library(oneDNN::dnnl UNKNOWN IMPORTED)
  set_target_properties(oneDNN::dnnl PROPERTIES
    IMPORTED_LOCATION "${oneDNN_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${oneDNN_INCLUDE_DIR}")
endif()
