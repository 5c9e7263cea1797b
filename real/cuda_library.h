// The library of the CUDA runtime, which is loaded when it is first needed, as that of NCCL (real/nccl_library.h). The
// path in SHARDPROOF_CUDART_LIBRARY, if there is one, is the only place where it is looked for.
#pragma once

namespace shardproof {

// To be called before any function of the CUDA runtime. unsupported_error if the library is not found, lacks a function
// that is used here, or is of another major version than the headers with which this was built.
void require_cuda();

}  // namespace shardproof
