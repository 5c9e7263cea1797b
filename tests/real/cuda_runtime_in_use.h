// What a test that is compiled for the fake CUDA runtime and for the real one has to know of either.
// Each program links one of the two source files.
#pragma once

#include <string>

namespace shardproof::test {

// Why there is no CUDA device; empty if there is one. To be called before CUDA is used.
std::string reason_for_no_cuda();
// What the fake has seen against its rules since; the real runtime says nothing.
std::string complaints_of_cuda();

}  // namespace shardproof::test
