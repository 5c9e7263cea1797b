// What the program says on a processor without the instructions that it is compiled for.
// The check itself has run before this test began, or there would be no test.
#include "app/processor_check.h"

#include <fcntl.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "tests/core/files/test_files.h"

namespace shardproof {
namespace {

struct Answer {
  bool suffices = false;
  std::string message;
};

Answer ask(const ProcessorFeatures& features) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "message";
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT, 0600);
  Answer answer;
  answer.suffices = processor_suffices(features, descriptor);
  ::close(descriptor);
  answer.message = test::contents_of(path);
  return answer;
}

TEST(ProcessorCheck, IsSilentWhenAllInstructionsAreThere) {
  const Answer answer = ask({.avx2 = true, .fma = true, .bmi2 = true});
  EXPECT_TRUE(answer.suffices);
  EXPECT_EQ(answer.message, "");
}

TEST(ProcessorCheck, NamesWhatIsMissing) {
  const Answer all = ask({});
  EXPECT_FALSE(all.suffices);
  EXPECT_EQ(all.message,
            "shardproof: this processor lacks instructions that the program needs: AVX2 FMA BMI2; expected an x86-64 "
            "processor with AVX2, FMA and BMI2\n");
  const Answer one = ask({.avx2 = true, .fma = false, .bmi2 = true});
  EXPECT_FALSE(one.suffices);
  EXPECT_EQ(one.message,
            "shardproof: this processor lacks instructions that the program needs: FMA; expected an x86-64 processor "
            "with AVX2, FMA and BMI2\n");
}

TEST(ProcessorCheck, FindsTheFeaturesOfThisProcessor) {
  const ProcessorFeatures features = processor_features();
  EXPECT_TRUE(features.avx2 && features.fma && features.bmi2);
}

}  // namespace
}  // namespace shardproof
