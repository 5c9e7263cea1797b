// NCCL and the CUDA runtime are linked, as themselves or as a stand-in: nothing has to be loaded before they are
// called. Linked in the place of the two files of the product that load them.
#include "real/cuda_library.h"
#include "real/nccl_library.h"

namespace shardproof {

void require_nccl() {}
void require_cuda() {}

}  // namespace shardproof
