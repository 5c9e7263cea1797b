// The fake CUDA runtime is in use: this process is its only rank.
// Everything that it gave must have been given back by the end of a test.
#include "tests/fake_nccl/fabric.h"
#include "tests/real/cuda_runtime_in_use.h"

namespace shardproof::test {

std::string reason_for_no_cuda() {
  static const bool is_made = [] {
    fake_nccl::make_fabric(1);
    fake_nccl::enter_fabric(0);
    return true;
  }();
  return is_made ? "" : "no fabric";
}

std::string complaints_of_cuda() {
  fake_nccl::check_everything_released();
  std::string text;
  for (const std::string& violation : fake_nccl::violations()) text += violation + "\n";
  return text;
}

}  // namespace shardproof::test
