# Everything that the build looks for, in one place. Nothing is downloaded.

find_package(fmt 9.1 CONFIG REQUIRED)
find_package(nlohmann_json 3.11 CONFIG REQUIRED)
find_package(CLI11 2.1 CONFIG REQUIRED)
find_package(Eigen3 3.4 CONFIG REQUIRED)
find_package(Boost 1.74 REQUIRED COMPONENTS context)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(Threads REQUIRED)
if(SHARDPROOF_BUILD_TESTS)
  find_package(GTest 1.12 CONFIG REQUIRED)
  find_package(rapidcheck CONFIG REQUIRED)
  include(GoogleTest)
endif()
