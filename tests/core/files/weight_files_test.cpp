// Weights in a folder: the three forms, and every way in which an index and its files can disagree. Files are written
// by the library's own writer and then damaged.
#include "core/weight_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/host_memory.h"
#include "tests/core/files/safetensors_files.h"
#include "tests/core/files/test_files.h"

namespace shardproof {
namespace {

using test::bytes_of;
using test::counted;
using test::file_error_of;
using test::put;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::string_view kIndex = "diffusion_pytorch_model.safetensors.index.json";

class WeightFolder : public ::testing::Test {
 protected:
  void write(std::string_view file, const std::vector<std::string>& names) {
    std::vector<NamedTensor> tensors;
    for (const std::string& name : names) tensors.push_back({name, tensor_named(name)});
    write_safetensors(folder_ / file, tensors);
  }
  Tensor tensor_named(const std::string& name) {
    return counted(device_, {4, 2}, kFloat32, static_cast<unsigned char>(name[0]));
  }
  void write_index(std::string_view weight_map) {
    put(folder_ / kIndex, "{\"metadata\": {\"total_size\": 96}, \"weight_map\": " + std::string(weight_map) + "}");
  }
  std::string refusal() {
    return file_error_of([&] { WeightFiles{folder_.path()}; });
  }
  std::string index_path() const { return (folder_ / kIndex).string(); }

  HostDevice device_;
  test::TemporaryFolder folder_;
};

TEST_F(WeightFolder, HoldsOneFileOfEitherName) {
  for (const char* file : {"weights.safetensors", "diffusion_pytorch_model.safetensors"}) {
    write(file, {"b", "a"});
    put(folder_ / "base.inputs.safetensors", "not of the weights");
    const WeightFiles weights(folder_.path());
    EXPECT_EQ(weights.folder(), folder_.path());
    EXPECT_EQ(weights.names(), (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(weights.file_count(), 1U);
    EXPECT_EQ(weights.find("c"), nullptr);
    EXPECT_EQ(weights.file_of("a").path(), folder_ / file);
    EXPECT_EQ(bytes_of(weights.tensor("a", device_)), bytes_of(tensor_named("a")));
    EXPECT_EQ(file_error_of([&] { weights.tensor("c", device_); }),
              "'" + folder_.path().string() + "': no tensor 'c' among the 2 weights of this folder");
    std::filesystem::remove(folder_ / file);
  }
}

TEST_F(WeightFolder, HoldsSeveralFilesThatAnIndexLists) {
  write("one.safetensors", {"a", "c"});
  std::filesystem::create_directory(folder_ / "sub");
  write("sub/two.safetensors", {"b"});
  write_index(R"({"a": "one.safetensors", "b": "sub/two.safetensors", "c": "./one.safetensors"})");
  const WeightFiles weights(folder_.path());
  EXPECT_EQ(weights.names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(weights.file_count(), 2U);
  for (const std::string& name : weights.names()) {
    EXPECT_EQ(weights.at(name).shape, (Shape{4, 2}));
    EXPECT_EQ(bytes_of(weights.tensor_view(name, device_)), bytes_of(tensor_named(name)));
  }
  EXPECT_EQ(weights.bytes_read(), 0U);
  EXPECT_EQ(bytes_of(weights.slice("b", {{0, 1, 2}}, device_)), bytes_of(tensor_named("b").narrow(0, 1, 2)));
  EXPECT_EQ(weights.bytes_read(), 16U);
  EXPECT_EQ(bytes_of(weights.tensor("a", device_)), bytes_of(tensor_named("a")));
  EXPECT_EQ(weights.bytes_read(), 48U);
}

TEST_F(WeightFolder, MayHoldLinksToFilesElsewhere) {
  const test::TemporaryFolder cache;
  write_safetensors(cache / "blob", std::vector<NamedTensor>{{"a", tensor_named("a")}});
  std::filesystem::create_symlink(cache / "blob", folder_ / "one.safetensors");
  write_index(R"({"a": "one.safetensors"})");
  EXPECT_EQ(bytes_of(WeightFiles(folder_.path()).tensor("a", device_)), bytes_of(tensor_named("a")));
}

TEST_F(WeightFolder, MustHoldExactlyOneForm) {
  const std::string folder = "'" + folder_.path().string() + "'";
  EXPECT_EQ(refusal(), folder +
                           " holds no weights: expected weights.safetensors, diffusion_pytorch_model.safetensors or "
                           "one *.safetensors.index.json");
  write("weights.safetensors", {"a"});
  write("diffusion_pytorch_model.safetensors", {"a"});
  EXPECT_EQ(refusal(),
            folder +
                " holds several forms of the weights: diffusion_pytorch_model.safetensors, weights.safetensors; "
                "expected one");
  std::filesystem::remove(folder_ / "diffusion_pytorch_model.safetensors");
  write_index(R"({"a": "weights.safetensors"})");
  EXPECT_THAT(refusal(), HasSubstr("several forms of the weights: diffusion_pytorch_model.safetensors.index.json, "
                                   "weights.safetensors"));
  std::filesystem::remove(folder_ / "weights.safetensors");
  put(folder_ / "other.safetensors.index.json", "{}");
  EXPECT_THAT(refusal(), HasSubstr("several forms of the weights"));
  EXPECT_EQ(file_error_of([&] { WeightFiles{folder_ / "none"}; }),
            "cannot read the folder '" + (folder_ / "none").string() + "': No such file or directory");
  EXPECT_EQ(file_error_of([&] { WeightFiles{folder_ / kIndex}; }),
            "cannot read the folder '" + index_path() + "': Not a directory");
}

TEST_F(WeightFolder, MustHoldEveryListedFile) {
  write("one.safetensors", {"a"});
  write_index(R"({"a": "one.safetensors", "b": "two.safetensors"})");
  EXPECT_EQ(refusal(), index_path() + ": tensor 'b' is said to be in 'two.safetensors', a file that does not exist");
  put(folder_ / "two.safetensors", "damaged");
  EXPECT_EQ(refusal(), (folder_ / "two.safetensors").string() +
                           ": 7 bytes; a safetensors file begins with 8 bytes that hold the length of its header");
  std::filesystem::remove(folder_ / "two.safetensors");
  std::filesystem::create_directory(folder_ / "two.safetensors");
  EXPECT_EQ(refusal(), "'" + (folder_ / "two.safetensors").string() + "' is a folder; expected a file");
}

TEST_F(WeightFolder, MustHoldTheSameTensorsAsItsIndex) {
  write("one.safetensors", {"a"});
  write("two.safetensors", {"b", "c"});
  write_index(R"({"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors", "d": "one.safetensors"})");
  EXPECT_EQ(refusal(),
            index_path() + ": tensor 'd' is said to be in 'one.safetensors', but that file does not hold it");
  write_index(R"({"a": "one.safetensors", "b": "two.safetensors"})");
  EXPECT_EQ(refusal(), index_path() + ": tensor 'c' of 'two.safetensors' is not in the index");
  write("one.safetensors", {"a", "b"});
  write_index(R"({"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"})");
  EXPECT_EQ(refusal(), index_path() + ": tensor 'b' is in both 'two.safetensors' and 'one.safetensors'");
}

TEST_F(WeightFolder, MayNotBeLeftByItsIndex) {
  write("one.safetensors", {"a"});
  const std::string outside = (folder_.path().parent_path() / "x.safetensors").string();
  for (const std::string& name : std::vector<std::string>{"../one.safetensors", "sub/../../one.safetensors", "..",
                                                          "sub/..", "", "sub/", outside, "one.safetensors\\u0000x"}) {
    write_index("{\"a\": \"" + name + "\"}");
    EXPECT_EQ(refusal(), index_path() +
                             ": key 'weight_map.a' must be the name of a file inside the folder of the index, got \"" +
                             name + "\"");
  }
}

TEST_F(WeightFolder, MustHaveAWellFormedIndex) {
  write("one.safetensors", {"a"});
  put(folder_ / kIndex, "{");
  EXPECT_THAT(refusal(), StartsWith(index_path() + ": not valid JSON at byte 1"));
  put(folder_ / kIndex, "{}");
  EXPECT_EQ(refusal(), index_path() + ": key 'weight_map' is missing");
  write_index("[]");
  EXPECT_EQ(refusal(), index_path() + ": key 'weight_map' must be an object, got []");
  write_index(R"({"a": 1})");
  EXPECT_EQ(refusal(), index_path() + ": key 'weight_map.a' must be a string, got 1");
  write_index(R"({"a": "one.safetensors", "a": "one.safetensors"})");
  EXPECT_EQ(refusal(), index_path() + ": key 'weight_map.a' stands twice");
}

TEST(RecordedWeights, AreFoundInTheirFolder) {
  HostDevice device;
  const WeightFiles weights(std::filesystem::path(SHARDPROOF_SOURCE_DIR) / "tests/data/goldens/flux/tiny");
  EXPECT_EQ(weights.at("x_embedder.weight").dtype, kFloat32);
  std::size_t bytes = 0;
  for (const std::string& name : weights.names()) bytes += weights.tensor(name, device).bytes();
  EXPECT_EQ(weights.bytes_read(), bytes);
  EXPECT_GT(bytes, 1'800'000U);
}

}  // namespace
}  // namespace shardproof
