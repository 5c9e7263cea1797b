// A module that says it is of another build, and whose devices cannot be had: if its version is not looked at first,
// the program that loads it crashes.
#include "real/torch_module.h"

extern "C" [[gnu::visibility("default")]] const shardproof::TorchModule* shardproof_torch_module() {
  static constexpr shardproof::TorchModule kModule{"0.0.0-other", nullptr, nullptr};
  return &kModule;
}
