// The program is compiled for processors with AVX2, FMA and BMI2 (x86-64-v3). On an older one it would be killed by its
// first such instruction; this check, compiled for any x86-64, runs before all other code and says so instead.
#pragma once

namespace shardproof {

struct ProcessorFeatures {
  bool avx2 = false;
  bool fma = false;
  bool bmi2 = false;
};

ProcessorFeatures processor_features();

// True if all are there. Otherwise writes a message that names the missing ones to the descriptor.
bool processor_suffices(const ProcessorFeatures& features, int message_descriptor);

}  // namespace shardproof
