# Everything that the build looks for, in one place. Nothing is downloaded.

find_package(fmt 9.1 CONFIG REQUIRED)
find_package(nlohmann_json 3.11 CONFIG REQUIRED)
find_package(CLI11 2.1 CONFIG REQUIRED)
find_package(Eigen3 3.4 CONFIG REQUIRED)
find_package(oneDNN 2.6 REQUIRED)
find_package(Boost 1.74 REQUIRED COMPONENTS context)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_path(xxHash_INCLUDE_DIR NAMES xxhash.h REQUIRED)
file(STRINGS "${xxHash_INCLUDE_DIR}/xxhash.h" xxHash_VERSION REGEX "#define XXH_VERSION_(MAJOR|MINOR|RELEASE) +[0-9]+")
string(REGEX MATCHALL "[0-9]+" xxHash_VERSION "${xxHash_VERSION}")
list(JOIN xxHash_VERSION "." xxHash_VERSION)
find_package(Threads REQUIRED)

# Optional: without it the MPI communicator is a stub that says how to get it.
option(SHARDPROOF_WITH_MPI "Build the MPI communicator if MPI is found" ON)
set(SHARDPROOF_MPI OFF)
if(SHARDPROOF_WITH_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)  # the C interface; its removed C++ bindings do not link
  find_package(MPI COMPONENTS CXX)
  set(SHARDPROOF_MPI ${MPI_CXX_FOUND})
endif()
# The same for NCCL with the CUDA runtime. Neither is a package of Debian: tools/setup_nccl.sh fetches them. Sanitizers
# are not run over foreign libraries of that size.
option(SHARDPROOF_WITH_NCCL "Build the NCCL communicator if NCCL and the CUDA runtime are found" ON)
set(SHARDPROOF_NCCL OFF)
if(SHARDPROOF_WITH_NCCL AND NOT SHARDPROOF_SANITIZE)
  find_package(NCCL 2.28)
  set(SHARDPROOF_NCCL ${NCCL_FOUND})
endif()
# Headers alone, which come with the CUDA toolkit and with tools/setup_nccl.sh.
find_package(NVTX)
set(SHARDPROOF_NVTX ${NVTX_FOUND})
# The same for LibTorch, from the Python package torch or from an archive of it: tools/setup_python.sh fetches one, and
# SHARDPROOF_TORCH_ROOT, Torch_DIR or CMAKE_PREFIX_PATH name another.
option(SHARDPROOF_WITH_TORCH "Build the device of LibTorch if LibTorch is found" ON)
set(SHARDPROOF_TORCH_ROOT "" CACHE PATH "Folder of LibTorch or of the Python package torch: it has include/ and lib/")
set(SHARDPROOF_TORCH OFF)
if(SHARDPROOF_WITH_TORCH AND NOT SHARDPROOF_SANITIZE)
  find_package(LibTorch 2.11)
  set(SHARDPROOF_TORCH ${LibTorch_FOUND})
endif()
if(SHARDPROOF_BUILD_TESTS)
  find_package(GTest 1.12 CONFIG REQUIRED)
  find_package(rapidcheck CONFIG REQUIRED)
  find_package(benchmark 1.7 CONFIG REQUIRED)
  include(GoogleTest)
endif()

# The table of all of them: docs/dependencies.md shows it with the versions of Debian 12, dependencies.md in the build
# folder with those that were found, and --version lists the libraries. tools/setup.sh installs the packages; a tidy
# test compares the three.
set(shardproof_libraries)
set(shardproof_dependency_rows)

# shardproof_dependency(NAME VERSION "PACKAGE.." needed|optional|tests|tools PURPOSE)
function(shardproof_dependency name version packages need purpose)
  if(version STREQUAL "")
    set(version "-")
  endif()
  list(APPEND shardproof_dependency_rows "| ${name} | ${packages} | ${version} | ${need} | ${purpose} |")
  set(shardproof_dependency_rows "${shardproof_dependency_rows}" PARENT_SCOPE)
  if(need MATCHES "^(needed|optional)$")
    list(APPEND shardproof_libraries "${name} ${version}")
    set(shardproof_libraries "${shardproof_libraries}" PARENT_SCOPE)
  endif()
endfunction()

# Sets `result` to the version of what is built only if it is found.
function(shardproof_version_if is_built version result)
  if(${is_built})
    set(${result} "${version}" PARENT_SCOPE)
  else()
    set(${result} "not found" PARENT_SCOPE)
  endif()
endfunction()

shardproof_dependency("fmt" "${fmt_VERSION}" "libfmt-dev" needed "text of messages and reports")
shardproof_dependency("nlohmann/json" "${nlohmann_json_VERSION}" "nlohmann-json3-dev" needed "reading JSON")
shardproof_dependency("CLI11" "${CLI11_VERSION}" "libcli11-dev" needed "the command line")
shardproof_dependency("Eigen" "${Eigen3_VERSION}" "libeigen3-dev" needed "arithmetic of the reference device")
shardproof_dependency("oneDNN" "${oneDNN_VERSION}" "libdnnl-dev" needed "float32 products of the CPU device")
shardproof_dependency("Boost.Context" "${Boost_VERSION}" "libboost-context-dev" needed "fibers of simulated ranks")
shardproof_dependency("OpenMP" "${OpenMP_CXX_VERSION}" "g++" needed "threads inside an operation of a device")
shardproof_version_if(SHARDPROOF_MPI "${MPI_CXX_VERSION}" shardproof_mpi_version)
shardproof_dependency("xxHash" "${xxHash_VERSION}" "libxxhash-dev" needed "checksums of what ranks send")
shardproof_dependency("MPI" "${shardproof_mpi_version}" "libopenmpi-dev openmpi-bin" optional "ranks as processes")
shardproof_version_if(SHARDPROOF_NCCL "${NCCL_VERSION}" shardproof_nccl_version)
shardproof_dependency("NCCL" "${shardproof_nccl_version}" "" optional "ranks that are GPUs; tools/setup_nccl.sh")
shardproof_version_if(SHARDPROOF_NVTX "3" shardproof_nvtx_version)
shardproof_dependency("NVTX" "${shardproof_nvtx_version}" "" optional "ranges for Nsight Systems; tools/setup_nccl.sh")
shardproof_version_if(SHARDPROOF_TORCH "${LibTorch_VERSION}" shardproof_torch_version)
shardproof_dependency("LibTorch" "${shardproof_torch_version}" "" optional "the device torch; tools/setup_python.sh")
shardproof_dependency("GoogleTest" "${GTest_VERSION}" "libgtest-dev libgmock-dev" tests "tests")
shardproof_dependency("RapidCheck" "${rapidcheck_VERSION}" "librapidcheck-dev" tests "laws for random configurations")
shardproof_dependency("Google Benchmark" "${benchmark_VERSION}" "libbenchmark-dev" tests "benchmarks")
shardproof_dependency("Python" "" "python3-venv" tests "the test of the exporter, the comparison with PyTorch")
shardproof_dependency("g++" "${CMAKE_CXX_COMPILER_VERSION}" "build-essential g++" tools "the compiler, for C++20")
shardproof_dependency("CMake" "${CMAKE_VERSION}" "cmake" tools "the build")
shardproof_dependency("Ninja" "" "ninja-build" tools "the build")
shardproof_dependency("ccache" "" "ccache" tools "reuses what was compiled before, where it is found")

string(JOIN "\n" shardproof_dependency_table
  "| name | Debian package | version | needed for | what it does |" "|---|---|---|---|---|"
  ${shardproof_dependency_rows})
file(WRITE "${PROJECT_BINARY_DIR}/dependencies.md" "${shardproof_dependency_table}\n")
list(JOIN shardproof_libraries ", " shardproof_libraries)
