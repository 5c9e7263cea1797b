// Made-up exports are exports: they load, run and are verified, and what cannot be made is refused in words. Peaks of
// memory are tested here too: a child that is known to touch much must show it.
#include "bench/synthetic_model.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/peak_memory.h"
#include "core/error.h"
#include "core/safetensors.h"
#include "tests/support/thrown_error.h"
#include "verify/verifier.h"

namespace shardproof::bench {
namespace {

using test::thrown;
using test::thrown_by;

class SyntheticModel : public ::testing::Test {
 protected:
  ~SyntheticModel() override { std::filesystem::remove_all(folder_); }

  std::string refusal(const std::vector<std::string>& words) const {
    try {
      write_synthetic_export(synthetic_export_from(words));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::usage_error);
      return error.what();
    }
    return "nothing was refused";
  }

  std::filesystem::path folder_ = std::filesystem::temp_directory_path() /
                                  std::string(::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(SyntheticModel, IsAnExportOfAboutTheSizeAskedForAndIsVerified) {
  const std::int64_t bytes = write_synthetic_export({.folder = folder_, .gigabytes = kSmallestGigabytes, .shards = 3});
  EXPECT_NEAR(static_cast<double>(bytes), 1e9 * kSmallestGigabytes, 4e6);
  Subject subject = Subject::open(folder_.string(), 0);
  EXPECT_EQ(subject.export_directory()->weights().file_count(), 3U);
  EXPECT_THAT(subject.case_names(), testing::ElementsAre("synthetic"));
  Verifier verifier(subject, {.dtype = kFloat32, .device = DeviceChoice::cpu});
  const auto plan = *subject.model().plans(subject.config()).default_cp;
  const VerificationResult result = verifier.verify("synthetic", {.ulysses_degree = 8}, plan);
  EXPECT_EQ(result.verdict, Verdict::rounding_equivalent) << result.reason;
  EXPECT_THAT(result.tokens_per_rank, testing::Each(8));
}

TEST_F(SyntheticModel, DependsOnItsSeedOnly) {
  const auto first_weight = [&](std::uint64_t seed) {
    write_synthetic_export({.folder = folder_, .gigabytes = kSmallestGigabytes, .seed = seed});
    const SafetensorsFile file(folder_ / "weights.safetensors");
    const auto bytes = file.bytes(file.entries().front().name);
    std::vector<std::byte> copy(bytes.begin(), bytes.end());
    std::filesystem::remove_all(folder_);
    return copy;
  };
  const auto of_seed_1 = first_weight(1);
  EXPECT_EQ(first_weight(1), of_seed_1);
  EXPECT_NE(first_weight(2), of_seed_1);
}

TEST_F(SyntheticModel, RefusesWhatCannotBeMadeInWords) {
  const std::string folder = folder_.string();
  EXPECT_EQ(refusal({}), "no folder was named");
  EXPECT_EQ(refusal({folder, "b"}), "two folders: '" + folder + "' and 'b'; expected one");
  EXPECT_EQ(refusal({folder, "--size", "1"}), "'--size' is no option");
  EXPECT_EQ(refusal({folder, "--tokens"}), "--tokens: a value is expected");
  EXPECT_EQ(refusal({folder, "--tokens", "many"}), "--tokens: 'many' is not a number that it takes");
  EXPECT_EQ(refusal({folder, "--seed", "-1"}), "--seed: '-1' is not a number that it takes");
  EXPECT_EQ(refusal({folder, "--gigabytes", "1e99999"}), "--gigabytes: '1e99999' is not a number that it takes");
  EXPECT_EQ(refusal({folder, "--tokens", "66"}), "66 tokens; expected a multiple of 4 from 4 to 1048576");
  EXPECT_EQ(refusal({folder, "--gigabytes", "0.001"}), "0.001 gigabytes; expected 0.03 to 200");
  EXPECT_EQ(refusal({folder, "--gigabytes", "nan"}), "nan gigabytes; expected 0.03 to 200");
  EXPECT_EQ(refusal({folder, "--shards", "0"}), "0 shards; expected 1 to 99");
  EXPECT_EQ(refusal({folder, "--class", "UNet"}), "class 'UNet' cannot be made up; expected FluxTransformer2DModel");
  EXPECT_FALSE(std::filesystem::exists(folder_)) << "a refused request left a folder behind";
  std::filesystem::create_directory(folder_);
  std::ofstream(folder_ / "a") << "x";
  EXPECT_EQ(refusal({folder}), "'" + folder + "' is no place for an export; expected a new or an empty folder");
  EXPECT_EQ(refusal({folder + "/a"}),
            "'" + folder + "/a' is no place for an export; expected a new or an empty folder");
}

TEST_F(SyntheticModel, NamesTheFolderThatCannotBeCreated) {
  std::ofstream(folder_) << "x";
  EXPECT_EQ(thrown_by([&] { write_synthetic_export({.folder = folder_ / "below"}); }),
            thrown(ErrorKind::file_error, "'" + (folder_ / "below").string() + "' cannot be created: Not a directory"));
}

TEST(PeakMemory, OfAChildCountsWhatItTouchedAndSaysHowItEnded) {
  constexpr std::size_t kMegabyte = 1'000'000;
  const std::vector<std::string> reads_60_megabytes{"dd",          "if=/dev/zero", "of=/dev/null",
                                                    "bs=60000000", "count=1",      "status=none"};
  const ChildRun large = run_child(reads_60_megabytes, ChildOutput::discarded);
  EXPECT_EQ(large.status, 0);
  EXPECT_GT(large.peak_bytes, 60 * kMegabyte);
  EXPECT_LT(large.peak_bytes, own_peak_bytes() + 80 * kMegabyte);
  EXPECT_EQ(run_child(std::vector<std::string>{"sh", "-c", "exit 7"}, ChildOutput::discarded).status, 7);
  EXPECT_EQ(run_child(std::vector<std::string>{"sh", "-c", "kill -9 $$"}, ChildOutput::discarded).status, 137);
  EXPECT_EQ(thrown_by([] { run_child({}, ChildOutput::shown); }),
            thrown(ErrorKind::usage_error, "run_child of an empty command; expected a program and arguments"));
  EXPECT_EQ(thrown_by([] { run_child(std::vector<std::string>{"/no/such"}, ChildOutput::shown); }),
            thrown(ErrorKind::usage_error, "cannot start '/no/such': No such file or directory"));
}

TEST(PeakMemory, OfThisProcessNeverFalls) {
  const std::size_t before = own_peak_bytes();
  {
    const std::vector<char> touched(std::size_t{50'000'000}, 'x');
  }
  EXPECT_GE(own_peak_bytes(), before);
  EXPECT_EQ(bytes_text(1'230'000'000), "1.23 GB");
  EXPECT_EQ(bytes_text(456'000'000), "456 MB");
}

}  // namespace
}  // namespace shardproof::bench
