# Installs BUILD_FOLDER below WORK_FOLDER, builds the consumer project against it and runs its test; stops at the first
# step that fails. Called as cmake -D.. -P by the test Package.ServesAConsumerProject.
cmake_minimum_required(VERSION 3.25)

function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "failed (${status}): ${ARGN}\n${output}")
  endif()
  set(step_output "${output}" PARENT_SCOPE)
endfunction()

# What a user has to write: lines that are neither blank nor a comment nor an include.
set(most_lines 30)
file(READ "${SOURCE_FOLDER}/consumer_test.cpp" user_lines)
string(REGEX REPLACE "[][;]" "" user_lines "${user_lines}")  # which mean something else in a list
string(REPLACE "\n" ";" user_lines "${user_lines}")
list(FILTER user_lines EXCLUDE REGEX "^ *(//.*|#include.*)?$")
list(LENGTH user_lines line_count)
if(line_count GREATER most_lines)
  message(FATAL_ERROR "consumer_test.cpp has ${line_count} lines of code; a user should need at most ${most_lines}")
endif()

file(REMOVE_RECURSE "${WORK_FOLDER}")
step(${CMAKE_COMMAND} --install "${BUILD_FOLDER}" --prefix "${WORK_FOLDER}/installed")
step(${CMAKE_COMMAND} -S "${SOURCE_FOLDER}" -B "${WORK_FOLDER}/build" -G Ninja -DCMAKE_BUILD_TYPE=Release
  "-DCMAKE_PREFIX_PATH=${WORK_FOLDER}/installed" "-DCMAKE_CXX_FLAGS=${CXX_FLAGS}")
step(${CMAKE_COMMAND} --build "${WORK_FOLDER}/build")
step("${WORK_FOLDER}/build/consumer_test")
message(STATUS "${step_output}")

# The installed program without the libraries of GPUs: it starts and verifies; what needs them is refused.
set(program "${WORK_FOLDER}/installed/bin/shardproof")
set(hidden ${CMAKE_COMMAND} -E env SHARDPROOF_NCCL_LIBRARY=/nowhere/libnccl.so.2
  SHARDPROOF_CUDART_LIBRARY=/nowhere/libcudart.so.13)
set(configuration flux --case even --ulysses-degree 2)
step(${hidden} "${program}" verify ${configuration})
step("${program}" --version)
set(version "${step_output}")
if(MPI_STARTS_ALONE)
  step(${hidden} "${program}" launch -n 2 -- "${program}" run ${configuration} --backend mpi)
endif()
if(version MATCHES "features [^\n]*communicator:nccl")
  execute_process(COMMAND ${hidden} "${program}" launch -n 2 -- "${program}" run ${configuration} --backend nccl
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 2 OR NOT output MATCHES "NCCL cannot be loaded \\(/nowhere/libnccl.so.2")
    message(FATAL_ERROR "expected a refusal (2), got (${status}):\n${output}")
  endif()
endif()

# A component that does not exist is named, with those that do.
file(WRITE "${WORK_FOLDER}/unknown/CMakeLists.txt"
  "cmake_minimum_required(VERSION 3.25)\nproject(unknown LANGUAGES CXX)\n"
  "find_package(shardproof 0.1 REQUIRED COMPONENTS verify nosuch)\n")
execute_process(COMMAND ${CMAKE_COMMAND} -S "${WORK_FOLDER}/unknown" -B "${WORK_FOLDER}/unknown/build" -G Ninja
    "-DCMAKE_PREFIX_PATH=${WORK_FOLDER}/installed"
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
string(REGEX REPLACE "[ \n]+" " " output "${output}")  # CMake breaks long lines
set(expected "no component 'nosuch'; expected some of core, parallel, models, reference, sim, real, reports, verify")
string(FIND "${output}" "${expected}" at)
if(status EQUAL 0 OR at EQUAL -1)
  message(FATAL_ERROR "expected a refusal with '${expected}', got (${status}):\n${output}")
endif()

# The test that --shrink writes is taken as it is: it builds, and fails on what was found to fail.
execute_process(COMMAND "${WORK_FOLDER}/installed/bin/shardproof" verify ltx --plan shipped --case even_masked
    --ulysses-degree 2 --shrink --json "${WORK_FOLDER}/shrunk.json"
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT status EQUAL 1)
  message(FATAL_ERROR "expected a difference (1), got (${status}):\n${output}")
endif()
# What it looks like is found in the data that were installed.
string(FIND "${output}" "hypothesis: PLAN_MODULATION_WHOLE" at)
if(at EQUAL -1)
  message(FATAL_ERROR "expected a hypothesis, got:\n${output}")
endif()
file(READ "${WORK_FOLDER}/shrunk.json" shrunk)
string(JSON shrunk GET "${shrunk}" shrunk test)
file(WRITE "${WORK_FOLDER}/shrunk/consumer_test.cpp" "${shrunk}")
configure_file("${SOURCE_FOLDER}/CMakeLists.txt" "${WORK_FOLDER}/shrunk/CMakeLists.txt" COPYONLY)
step(${CMAKE_COMMAND} -S "${WORK_FOLDER}/shrunk" -B "${WORK_FOLDER}/shrunk/build" -G Ninja -DCMAKE_BUILD_TYPE=Debug
  "-DCMAKE_PREFIX_PATH=${WORK_FOLDER}/installed" "-DCMAKE_CXX_FLAGS=${CXX_FLAGS}")
step(${CMAKE_COMMAND} --build "${WORK_FOLDER}/shrunk/build")
execute_process(COMMAND "${WORK_FOLDER}/shrunk/build/consumer_test"
  RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
string(FIND "${output}" "DIFFERENT: rank 0: argument 'timestep'" at)
if(status EQUAL 0 OR at EQUAL -1)
  message(FATAL_ERROR "expected the test to fail with DIFFERENT, got (${status}):\n${output}")
endif()
