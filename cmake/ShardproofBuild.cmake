# Compiler settings, and the functions that define the libraries, programs and tests of the project. A folder's
# CMakeLists.txt lists its sources through them and says what it links; nothing else is set there.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(SHARDPROOF_CCACHE ccache)
if(SHARDPROOF_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without these it keeps nothing of what is compiled with precompiled headers.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    "${SHARDPROOF_CCACHE}")
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()

# Every target of the project links this one: warnings, instruction set, rounding rules.
add_library(shardproof_build_flags INTERFACE)
target_compile_options(shardproof_build_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion
  $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>  # false for "a" + string
  $<$<BOOL:${SHARDPROOF_WARNINGS_AS_ERRORS}>:-Werror>
  -march=x86-64-v3          # AVX2 and FMA; the program says so on a processor without them
  -ffp-contract=off         # a*b+c keeps both roundings, so that bits do not depend on the optimiser
  -fno-math-errno
  -fno-trapping-math        # nobody reads the flags of floating exceptions, and selects become vectorisable
  -fstack-clash-protection) # a large stack frame touches the guard of a simulated rank's stack, never what lies beyond
# Eigen keeps its scratch off the small stacks of simulated ranks and never starts threads of its own.
target_compile_definitions(shardproof_build_flags INTERFACE
  EIGEN_STACK_ALLOCATION_LIMIT=16384 EIGEN_DONT_PARALLELIZE EIGEN_MPL2_ONLY)
if(NOT "${SHARDPROOF_SANITIZE}" MATCHES "^(|address,undefined|thread)$")
  message(FATAL_ERROR
    "SHARDPROOF_SANITIZE is '${SHARDPROOF_SANITIZE}'; expected nothing, 'address,undefined' or 'thread'")
endif()
if(SHARDPROOF_SANITIZE)
  target_compile_options(shardproof_build_flags INTERFACE
    -fsanitize=${SHARDPROOF_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer
    -fno-sanitize=null)  # the address sanitizer stops there as well, and compiling takes three quarters of the time
  target_link_options(shardproof_build_flags INTERFACE -fsanitize=${SHARDPROOF_SANITIZE})
endif()

# shardproof_library(FOLDER SOURCES a.cpp ... PUBLIC targets ... PRIVATE targets ...)
# Defines the library of one folder. Headers are included from the root: "folder/header.h".
function(shardproof_library folder)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(shardproof_${folder} STATIC ${ARG_SOURCES})
  add_library(shardproof::${folder} ALIAS shardproof_${folder})
  target_compile_features(shardproof_${folder} PUBLIC cxx_std_20)
  target_include_directories(shardproof_${folder} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
  target_link_libraries(shardproof_${folder}
    PUBLIC ${ARG_PUBLIC} PRIVATE $<BUILD_INTERFACE:shardproof_build_flags> ${ARG_PRIVATE})
endfunction()

# With CMAKE_UNITY_BUILD, as in most presets, up to eight sources of a target are compiled as one, which takes half the
# time; names at file scope must not collide then. shardproof_compile_apart(a.cpp ...) leaves sources out of it: those
# whose names do, and for a good reason.
function(shardproof_compile_apart)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# shardproof_program(NAME SOURCES a.cpp ... LINKS targets ...)
# Defines a command-line program.
function(shardproof_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINKS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE shardproof_build_flags ${ARG_LINKS})
endfunction()

# Code that spends its time in the libraries below it, which are optimised: it compiles in half the time without.
function(shardproof_thin_code name)
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O0> $<$<CONFIG:RelWithDebInfo>:-O0>)
endfunction()

# Gives a test the headers that nearly all of them include, compiled once for all.
function(shardproof_reuse_test_headers name)
  if(NOT TARGET shardproof_test_headers)
    file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/test_headers.cpp" CONTENT "" @ONLY)
    add_library(shardproof_test_headers OBJECT "${PROJECT_BINARY_DIR}/test_headers.cpp")
    target_link_libraries(shardproof_test_headers
      PRIVATE shardproof_build_flags fmt::fmt GTest::gmock GTest::gtest_main)
    target_compile_definitions(shardproof_test_headers PRIVATE SHARDPROOF_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    shardproof_thin_code(shardproof_test_headers)
    target_precompile_headers(shardproof_test_headers PRIVATE
      <algorithm> <cmath> <filesystem> <fstream> <map> <numeric> <set> <fmt/format.h> <gmock/gmock.h> <gtest/gtest.h>)
  endif()
  target_precompile_headers(${name} REUSE_FROM shardproof_test_headers)
endfunction()

# shardproof_test(NAME SOURCES a.cpp ... LINKS targets ... [LABELS fast] [TIMEOUT seconds] [FILTER pattern] [OPTIMISED])
# Defines one GoogleTest program; each of its tests is a ctest test with the given labels. The program finds files of
# the repository under the macro SHARDPROOF_SOURCE_DIR. FILTER leaves tests out, as --gtest_filter does. The targets
# `fast_tests` and `oracle_tests` build every program labelled so. OPTIMISED is for a program whose own code takes the
# time.
function(shardproof_test name)
  cmake_parse_arguments(ARG "OPTIMISED" "TIMEOUT;FILTER" "SOURCES;LINKS;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    set(ARG_LABELS fast)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
    if(SHARDPROOF_SANITIZE)
      set(ARG_TIMEOUT 600)
    endif()
  endif()
  shardproof_program(${name} SOURCES ${ARG_SOURCES} LINKS ${ARG_LINKS} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE SHARDPROOF_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  if(ARG_OPTIMISED)
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1> $<$<CONFIG:RelWithDebInfo>:-O0>)
  else()
    shardproof_thin_code(${name})
    if(NOT "OpenMP::OpenMP_CXX" IN_LIST ARG_LINKS)  # whose option is not that of the headers
      shardproof_reuse_test_headers(${name})
    endif()
  endif()
  if(ARG_FILTER)
    set(filter TEST_FILTER ${ARG_FILTER})
  else()
    set(filter)
  endif()
  gtest_discover_tests(${name} NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60 ${filter} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
  # gtest_discover_tests takes one label only, so the labels are set by a script that ctest reads behind its list.
  set(label_script "${CMAKE_CURRENT_BINARY_DIR}/${name}_labels.cmake")
  file(WRITE "${label_script}"
    "if(${name}_TESTS)\n  set_tests_properties(\${${name}_TESTS} PROPERTIES LABELS \"${ARG_LABELS}\")\nendif()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${label_script}")
  foreach(label IN ITEMS fast oracle)
    if(label IN_LIST ARG_LABELS)
      if(NOT TARGET ${label}_tests)
        add_custom_target(${label}_tests)
      endif()
      add_dependencies(${label}_tests ${name})
    endif()
  endforeach()
endfunction()

# shardproof_mpi_test(NAME PROCESSES COMMAND...)
# A ctest test that runs the command as so many processes of mpirun, more than there are cores if need be. Label mpi.
function(shardproof_mpi_test name processes)
  add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe -n ${processes} ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS mpi TIMEOUT 120 PROCESSORS 2
    ENVIRONMENT "OMPI_ALLOW_RUN_AS_ROOT=1;OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1;OMP_NUM_THREADS=1")
endfunction()

# shardproof_launch_test(NAME PROCESSES COMMAND...)
# The same, started by `shardproof launch`. Label mpi. Skipped where only mpirun can start ranks of MPI.
function(shardproof_launch_test name processes)
  if(NOT SHARDPROOF_MPI_STARTS_ALONE)
    shardproof_skipped_test(${name} mpi "ranks of this MPI can be started by mpirun only")
    return()
  endif()
  add_test(NAME ${name} COMMAND shardproof launch -n ${processes} -- ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS mpi TIMEOUT 120 PROCESSORS 2
    ENVIRONMENT "OMP_NUM_THREADS=1;SHARDPROOF_PMI_LIBRARY=$<TARGET_FILE:shardproof_pmi>")
endfunction()

# shardproof_skipped_test(NAME LABEL REASON)
# A ctest test that is skipped for that reason; the lines have the form in which GoogleTest reports a skip.
function(shardproof_skipped_test name label reason)
  add_test(NAME ${name} COMMAND sh -c "echo '${name}: Skipped'; echo 'SKIPPED: ${reason}'; exit 77")
  set_tests_properties(${name} PROPERTIES LABELS ${label} SKIP_RETURN_CODE 77)
endfunction()

# shardproof_header_check(NAME HEADERS a.h ... LINKS targets ...)
# A ctest test, label tidy, that compiles each header alone, included twice, so that none leans on what another file
# included before it. No other target needs what it makes.
function(shardproof_header_check name)
  cmake_parse_arguments(ARG "" "" "HEADERS;LINKS" ${ARGN})
  set(sources)
  foreach(header IN LISTS ARG_HEADERS)
    set(source "${CMAKE_CURRENT_BINARY_DIR}/${name}/${header}.cpp")
    file(CONFIGURE OUTPUT "${source}" CONTENT "#include \"@header@\"\n#include \"@header@\"\n" @ONLY)
    list(APPEND sources "${source}")
  endforeach()
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${sources})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE shardproof_build_flags ${ARG_LINKS})
  target_compile_options(${name} PRIVATE -O0 -g0)
  target_compile_definitions(${name} PRIVATE SHARDPROOF_SOURCE_DIR="${PROJECT_SOURCE_DIR}")  # as tests have it
  set_target_properties(${name} PROPERTIES UNITY_BUILD OFF)
  if(NOT SHARDPROOF_SANITIZE)
    add_test(NAME Repository.HeadersStandAlone
      COMMAND ${CMAKE_COMMAND} --build ${PROJECT_BINARY_DIR} --target ${name} -j 2)
    set_tests_properties(Repository.HeadersStandAlone PROPERTIES LABELS tidy TIMEOUT 300 PROCESSORS 2 RUN_SERIAL TRUE)
  endif()
endfunction()
