// The library of NCCL, which is loaded when it is first needed: nccl_library.cpp defines the functions of NCCL that are
// used here, and each calls the one of its name in the library. It is looked for at the path in SHARDPROOF_NCCL_LIBRARY
// alone. Otherwise it is the one that PyTorch has loaded, if it has; or it lies where the build found it, which is the
// one that PyTorch will load if it was built with that; or the program loader finds it, or the CUDA toolkit has it.
#pragma once

namespace shardproof {

// To be called before any function of NCCL. unsupported_error if the library is not found, lacks a function that is
// used here, or is older than 2.28.
void require_nccl();

}  // namespace shardproof
