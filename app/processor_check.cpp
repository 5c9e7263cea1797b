#include "app/processor_check.h"

#include <unistd.h>

#include <cstring>

namespace shardproof {
namespace {

// No inline function of the standard library may be used here: the linker could take the copy of a file that is
// compiled for the newer instructions.
void write_text(int descriptor, const char* text) {
  std::size_t left = std::strlen(text);
  while (left > 0) {
    const ssize_t count = ::write(descriptor, text, left);
    if (count <= 0) return;
    text += count;
    left -= static_cast<std::size_t>(count);
  }
}

constexpr int kUsageStatus = 2;

// 101 is the first priority that a program may take: before all constructors of its own static objects.
[[gnu::constructor(101)]] void check_processor() {
  if (!processor_suffices(processor_features(), STDERR_FILENO)) ::_exit(kUsageStatus);
}

}  // namespace

ProcessorFeatures processor_features() {
  __builtin_cpu_init();
  return {__builtin_cpu_supports("avx2") != 0, __builtin_cpu_supports("fma") != 0, __builtin_cpu_supports("bmi2") != 0};
}

bool processor_suffices(const ProcessorFeatures& features, int message_descriptor) {
  if (features.avx2 && features.fma && features.bmi2) return true;
  write_text(message_descriptor, "shardproof: this processor lacks instructions that the program needs:");
  if (!features.avx2) write_text(message_descriptor, " AVX2");
  if (!features.fma) write_text(message_descriptor, " FMA");
  if (!features.bmi2) write_text(message_descriptor, " BMI2");
  write_text(message_descriptor, "; expected an x86-64 processor with AVX2, FMA and BMI2\n");
  return false;
}

}  // namespace shardproof
