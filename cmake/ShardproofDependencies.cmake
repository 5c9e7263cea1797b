# Everything that the build looks for, in one place. Nothing is downloaded.

find_package(fmt 9.1 CONFIG REQUIRED)
find_package(nlohmann_json 3.11 CONFIG REQUIRED)
find_package(CLI11 2.1 CONFIG REQUIRED)
find_package(Eigen3 3.4 CONFIG REQUIRED)
find_package(oneDNN 2.6 REQUIRED)
find_package(Boost 1.74 REQUIRED COMPONENTS context)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(Threads REQUIRED)

# Optional: without it the MPI communicator is a stub that says how to get it.
option(SHARDPROOF_WITH_MPI "Build the MPI communicator if MPI is found" ON)
set(SHARDPROOF_MPI OFF)
if(SHARDPROOF_WITH_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)  # the C interface; its removed C++ bindings do not link
  find_package(MPI COMPONENTS CXX)
  set(SHARDPROOF_MPI ${MPI_CXX_FOUND})
endif()
if(SHARDPROOF_BUILD_TESTS)
  find_package(GTest 1.12 CONFIG REQUIRED)
  find_package(rapidcheck CONFIG REQUIRED)
  include(GoogleTest)
endif()
