// Safetensors files that are as they should be: what is written is read back, slices equal parts of the whole, views
// share the file's memory, and the recorded files say what their descriptions say.
#include "core/safetensors.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/host_memory.h"
#include "core/json.h"
#include "tests/core/files/safetensors_files.h"
#include "tests/core/files/test_files.h"

namespace shardproof {
namespace {

using test::bytes_of;
using test::contents_of;
using test::counted;
using test::file_error_of;
using test::message_of;
using test::put;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A device whose memory is none of the host device's, so that nothing can be shared with it.
class ForeignDevice final : public Device {
 private:
  class Memory final : public Storage {
   public:
    Memory(Device& device, std::vector<std::byte> bytes)
        : Storage(device, bytes.data(), bytes.size()), bytes_(std::move(bytes)) {}

   private:
    std::vector<std::byte> bytes_;
  };

  static void not_needed() { fail(ErrorKind::internal_error, "this test needs no arithmetic"); }
  std::string_view do_name() const override { return "foreign"; }
  bool do_supports(DType) const override { return true; }
  StoragePointer do_allocate(std::size_t bytes) override {
    return std::make_shared<Memory>(*this, std::vector<std::byte>(bytes));
  }
  void do_upload(const Tensor& dst, std::span<const std::byte> bytes) override {
    std::copy(bytes.begin(), bytes.end(), dst.data());
  }
  void do_download(std::span<std::byte> bytes, const Tensor& src) override {
    std::copy_n(src.data(), bytes.size(), bytes.data());
  }
  void do_copy(const Tensor&, const Tensor&) override { not_needed(); }
  void do_fill(const Tensor&, double) override { not_needed(); }
  void do_poison(const Tensor&) override { not_needed(); }
  void do_unary(UnaryOp, const Tensor&, const Tensor&) override { not_needed(); }
  void do_binary(BinaryOp, const Tensor&, const Tensor&, const Tensor&) override { not_needed(); }
  void do_matmul(const Tensor&, const Tensor&, const Tensor&, const Tensor&) override { not_needed(); }
  void do_reduce(ReduceOp, const Tensor&, const Tensor&) override { not_needed(); }
  void do_attention(const AttentionOutput&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                    double) override {
    not_needed();
  }
  void do_gather_rows(const Tensor&, const Tensor&, const Tensor&) override { not_needed(); }
  void do_synchronize() override {}
};

class Float64OnlyDevice final : public HostDevice {
 private:
  bool do_supports(DType dtype) const override { return dtype == kFloat64; }
};

std::vector<NamedTensor> one_of_each(Device& device) {
  return {{"flags", counted(device, {5}, kBool)},
          {"half", counted(device, {3, 1}, kFloat16, 1)},
          {"brain", counted(device, {2, 3, 4}, kBFloat16, 2)},
          {"none", counted(device, {3, 0, 2}, kFloat32)},
          {"scalar", counted(device, {}, kFloat64, 4)},
          {"index", counted(device, {2, 2}, kInt64, 5)},
          {"single", counted(device, {7}, kFloat32, 6)}};
}

TEST(Safetensors, ReadsBackWhatWasWritten) {
  const test::TemporaryFolder folder;
  HostDevice device;
  const std::vector<NamedTensor> tensors = one_of_each(device);
  write_safetensors(folder / "a", tensors, {{"format", "pt"}, {"note", "\"quoted\" é"}});
  const SafetensorsFile file(folder / "a");
  EXPECT_EQ(file.path(), folder / "a");
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"note", "\"quoted\" é"}}));
  ASSERT_EQ(file.entries().size(), tensors.size());
  std::size_t total = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const SafetensorsEntry& entry = file.entries()[i];
    EXPECT_EQ(entry.name, tensors[i].name);
    const Tensor tensor = file.tensor(entry.name, device);
    EXPECT_EQ(tensor.dtype(), tensors[i].tensor.dtype());
    EXPECT_EQ(tensor.shape(), tensors[i].tensor.shape());
    EXPECT_EQ(bytes_of(tensor), bytes_of(tensors[i].tensor)) << entry.name;
    EXPECT_TRUE(std::ranges::equal(file.bytes(entry.name), bytes_of(tensors[i].tensor)));
    EXPECT_EQ(file.find(entry.name), &entry);
    EXPECT_EQ(&file.at(entry.name), &entry);
    total += tensor.bytes();
  }
  EXPECT_EQ(file.bytes_read(), total);
}

TEST(Safetensors, WritesExactlyTheseBytes) {
  const test::TemporaryFolder folder;
  HostDevice device;
  const std::vector<NamedTensor> tensors{{"b", counted(device, {2}, kBool)}, {"f", counted(device, {1, 1}, kFloat32)}};
  write_safetensors(folder / "a", tensors, {{"k", "v"}});
  // Wide elements come first in the data, the header keeps the order; spaces fill it to a multiple of 64 bytes.
  std::string header = R"({"__metadata__":{"k":"v"},"b":{"dtype":"BOOL","shape":[2],"data_offsets":[4,6]},)"
                       R"("f":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]}})";
  header.resize(184, ' ');
  EXPECT_EQ(contents_of(folder / "a"),
            test::safetensors_bytes(header, std::string_view("\x00\x01\x02\x03\x00\x01", 6)));
}

TEST(Safetensors, WritesTheSameBytesEveryTime) {
  const test::TemporaryFolder folder;
  HostDevice device;
  write_safetensors(folder / "a", one_of_each(device), {{"x", "1"}, {"y", "2"}});
  write_safetensors(folder / "b", one_of_each(device), {{"y", "2"}, {"x", "1"}});
  EXPECT_EQ(contents_of(folder / "a"), contents_of(folder / "b"));
  EXPECT_EQ(folder.entry_count(), 2U);
}

TEST(Safetensors, WritesTensorsThatAreMadeOneAtATime) {
  const test::TemporaryFolder folder;
  HostDevice device;
  const std::vector<NamedTensor> tensors = one_of_each(device);
  std::vector<DeclaredTensor> declared;
  for (const NamedTensor& named : tensors) {
    declared.push_back({named.name, named.tensor.dtype(), named.tensor.shape()});
  }
  std::vector<int> asked(tensors.size(), 0);
  const auto make = [&](std::size_t i) {
    ++asked[i];
    return tensors[i].tensor;
  };
  write_safetensors(folder / "a", tensors, {{"x", "1"}});
  write_safetensors(folder / "b", declared, make, {{"x", "1"}});
  EXPECT_EQ(contents_of(folder / "a"), contents_of(folder / "b"));
  EXPECT_EQ(asked, std::vector<int>(tensors.size(), 1));

  const std::vector<DeclaredTensor> other{{"a", kFloat32, {3}}};
  EXPECT_EQ(
      message_of(
          ErrorKind::usage_error,
          [&] { write_safetensors(folder / "c", other, [&](std::size_t) { return counted(device, {2}, kFloat32); }); }),
      "tensor 'a' is float32 [2], but was announced as float32 [3]");
  EXPECT_EQ(folder.entry_count(), 2U);
}

TEST(Safetensors, AlignsEveryTensorToItsElements) {
  const test::TemporaryFolder folder;
  HostDevice device;
  write_safetensors(folder / "a", one_of_each(device));
  const SafetensorsFile file(folder / "a");
  for (const SafetensorsEntry& entry : file.entries()) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file.bytes(entry.name).data()) % entry.dtype.size(), 0U) << entry.name;
  }
  // The data as a whole begins at a multiple of 64 bytes of the page-aligned map.
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file.bytes("scalar").data()) % 64, 0U);
}

TEST(Safetensors, WritesStridedTensorsRowMajor) {
  const test::TemporaryFolder folder;
  HostDevice device;
  const Tensor whole = counted(device, {2, 3, 4}, kFloat32);
  const std::vector<NamedTensor> tensors{{"t", whole.permute({2, 0, 1})}, {"n", whole.narrow(1, 1, 2)}};
  write_safetensors(folder / "a", tensors);
  const SafetensorsFile file(folder / "a");
  EXPECT_EQ(file.at("t").shape, (Shape{4, 2, 3}));
  std::vector<std::byte> expected;
  for (std::size_t k = 0; k < 4; ++k) {
    for (std::size_t row = 0; row < 6; ++row) {
      for (std::size_t byte = 0; byte < 4; ++byte) expected.push_back(static_cast<std::byte>(16 * row + 4 * k + byte));
    }
  }
  EXPECT_TRUE(std::ranges::equal(file.bytes("t"), expected));
  EXPECT_EQ(bytes_of(file.tensor("n", device)), bytes_of(whole.narrow(1, 1, 2)));
}

TEST(Safetensors, WritesAndReadsAFileWithoutTensors) {
  const test::TemporaryFolder folder;
  write_safetensors(folder / "a", {});
  const SafetensorsFile file(folder / "a");
  EXPECT_TRUE(file.entries().empty());
  EXPECT_TRUE(file.metadata().empty());
  EXPECT_EQ(file_error_of([&] { file.bytes("x"); }), (folder / "a").string() + ": no tensor 'x'; the file holds none");
  put(folder / "b", test::safetensors_bytes("{}", ""));
  EXPECT_TRUE(SafetensorsFile(folder / "b").entries().empty());
}

TEST(Safetensors, NamesWhatIsThereWhenATensorIsNot) {
  const test::TemporaryFolder folder;
  HostDevice device;
  write_safetensors(folder / "a", one_of_each(device));
  const SafetensorsFile file(folder / "a");
  EXPECT_EQ(file.find("x"), nullptr);
  EXPECT_EQ(
      file_error_of([&] { file.tensor("x", device); }),
      (folder / "a").string() + ": no tensor 'x'; the file holds flags, half, brain, none, scalar, index, single");
}

TEST(Safetensors, RefusesToWriteWhatTheFormatCannotHold) {
  const test::TemporaryFolder folder;
  HostDevice device;
  const Tensor tensor = counted(device, {2}, kFloat32);
  const auto refusal = [&](ErrorKind kind, const std::vector<NamedTensor>& tensors,
                           const std::map<std::string, std::string>& metadata = {}) {
    return message_of(kind, [&] { write_safetensors(folder / "a", tensors, metadata); });
  };
  EXPECT_EQ(refusal(ErrorKind::usage_error, {{"a", tensor}, {"a", tensor}}), "tensor 'a' is to be written twice");
  EXPECT_EQ(refusal(ErrorKind::usage_error, {{"__metadata__", tensor}}),
            "'__metadata__' cannot be the name of a tensor in a safetensors file");
  EXPECT_EQ(refusal(ErrorKind::usage_error, {{"\xFF", tensor}}),
            "'\\xff' cannot be the name of a tensor in a safetensors file");
  EXPECT_EQ(refusal(ErrorKind::usage_error, {}, {{"k", "\xFF"}}), "metadata 'k': '\\xff' is not UTF-8");
  EXPECT_EQ(refusal(ErrorKind::usage_error, {{"a", Tensor({2}, kFloat32)}}),
            "tensor 'a' (float32 [2]) has no values to write");
  const DType exotic = register_dtype({"exotic_of_safetensors_test", 4, DTypeCategory::exact});
  EXPECT_EQ(refusal(ErrorKind::type_error, {{"a", device.empty({2}, exotic)}}),
            "tensor 'a': element type exotic_of_safetensors_test cannot be written to a safetensors file");
  EXPECT_EQ(folder.entry_count(), 0U);
}

TEST(Safetensors, NamesTheFileThatCannotBeWritten) {
  HostDevice device;
  const std::vector<NamedTensor> tensors{{"a", counted(device, {2}, kFloat32)}};
  EXPECT_EQ(file_error_of([&] { write_safetensors("/dev/full", tensors); }),
            "cannot write '/dev/full': No space left on device");
}

// Every range of a size: (n + 1)(n + 2) / 2 of them, empty ones included.
std::vector<AxisRange> ranges_of(int axis, std::int64_t size) {
  std::vector<AxisRange> ranges;
  for (std::int64_t start = 0; start <= size; ++start) {
    for (std::int64_t length = 0; start + length <= size; ++length) ranges.push_back({axis, start, length});
  }
  return ranges;
}

TEST(Safetensors, SlicesEqualPartsOfTheWholeAndReadOnlyThose) {
  const test::TemporaryFolder folder;
  HostDevice device;
  const std::vector<NamedTensor> tensors{{"t", counted(device, {3, 4, 5}, kFloat32)}};
  write_safetensors(folder / "a", tensors);
  const SafetensorsFile file(folder / "a");
  const Tensor& whole = tensors.front().tensor;
  int checked = 0;
  for (const AxisRange& a : ranges_of(0, 3)) {
    for (const AxisRange& b : ranges_of(-2, 4)) {
      for (const AxisRange& c : ranges_of(2, 5)) {
        const std::size_t before = file.bytes_read();
        const Tensor slice = file.slice("t", {c, a, b}, device);
        const Tensor expected =
            whole.narrow(0, a.start, a.length).narrow(1, b.start, b.length).narrow(2, c.start, c.length);
        ASSERT_EQ(slice.shape(), expected.shape());
        ASSERT_EQ(bytes_of(slice), bytes_of(expected)) << slice.text();
        ASSERT_EQ(file.bytes_read() - before, slice.bytes());
        ++checked;
      }
    }
  }
  EXPECT_EQ(checked, 10 * 15 * 21);
}

TEST(Safetensors, SlicesEveryTypeAlongSomeAxesOnly) {
  const test::TemporaryFolder folder;
  HostDevice device;
  for (const DType dtype : {kFloat64, kFloat32, kBFloat16, kFloat16, kInt64, kBool}) {
    const std::vector<NamedTensor> tensors{{"t", counted(device, {4, 6}, dtype)}, {"s", counted(device, {}, dtype)}};
    write_safetensors(folder / "a", tensors);
    const SafetensorsFile file(folder / "a");
    const Tensor& whole = tensors.front().tensor;
    EXPECT_EQ(bytes_of(file.slice("t", {{0, 1, 2}}, device)), bytes_of(whole.narrow(0, 1, 2)));
    EXPECT_EQ(bytes_of(file.slice("t", {{1, 3, 2}}, device)), bytes_of(whole.narrow(1, 3, 2)));
    EXPECT_EQ(bytes_of(file.slice("t", {{-1, 5, 1}}, device)), bytes_of(whole.narrow(1, 5, 1)));
    EXPECT_EQ(bytes_of(file.slice("t", {}, device)), bytes_of(whole));
    EXPECT_EQ(bytes_of(file.slice("s", {}, device)), bytes_of(tensors.back().tensor));
    EXPECT_EQ(file.slice("t", {{1, 3, 2}}, device).dtype(), dtype);
  }
}

TEST(Safetensors, RefusesSlicesThatDoNotLieWithinTheTensor) {
  const test::TemporaryFolder folder;
  HostDevice device;
  const std::vector<NamedTensor> tensors{{"t", counted(device, {4, 6}, kFloat32)}};
  write_safetensors(folder / "a", tensors);
  const SafetensorsFile file(folder / "a");
  const auto refusal = [&](std::initializer_list<AxisRange> ranges) {
    return message_of(ErrorKind::shape_error, [&] { file.slice("t", ranges, device); });
  };
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  EXPECT_EQ(refusal({{1, 5, 2}}), "slice of tensor 't': 2 entries from 5 do not lie within axis 1 of shape [4, 6]");
  EXPECT_EQ(refusal({{0, -1, 2}}), "slice of tensor 't': 2 entries from -1 do not lie within axis 0 of shape [4, 6]");
  for (const std::int64_t start : {kMin, std::int64_t{-1}, std::int64_t{1}, kMax}) {
    for (const std::int64_t length : {kMin, std::int64_t{-1}, std::int64_t{4}, kMax}) {
      EXPECT_THAT(refusal({{0, start, length}}), HasSubstr("do not lie within axis 0")) << start << ' ' << length;
    }
  }
  EXPECT_EQ(refusal({{0, 0, 1}, {-2, 0, 1}}), "slice of tensor 't' names axis 0 twice");
  EXPECT_EQ(refusal({{2, 0, 1}}), "axis 2 does not exist in a tensor of 2 dimensions");
  EXPECT_EQ(file.bytes_read(), 0U);
}

TEST(Safetensors, ViewsShareTheMemoryOfTheFileAndKeepItMapped) {
  const test::TemporaryFolder folder;
  HostDevice device;
  const std::vector<NamedTensor> tensors = one_of_each(device);
  write_safetensors(folder / "a", tensors);
  std::vector<Tensor> views;
  {
    const SafetensorsFile file(folder / "a");
    for (const NamedTensor& named : tensors) {
      views.push_back(file.tensor_view(named.name, device));
      EXPECT_EQ(views.back().data(), file.bytes(named.name).data());
    }
    EXPECT_EQ(file.bytes_read(), 0U);
  }
  std::filesystem::remove(folder / "a");
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(&views[i].device(), &device);
    EXPECT_EQ(views[i].shape(), tensors[i].tensor.shape());
    EXPECT_EQ(bytes_of(views[i]), bytes_of(tensors[i].tensor)) << tensors[i].name;
  }
}

TEST(Safetensors, ViewsOfUnalignedBytesAreCopies) {
  const test::TemporaryFolder folder;
  HostDevice device;
  const std::string header = R"({"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]},)"
                             R"("b":{"dtype":"I64","shape":[2],"data_offsets":[1,17]}})";
  put(folder / "a", test::safetensors_bytes(header, std::string_view("\1abcdefghijklmnop", 17)));
  const SafetensorsFile file(folder / "a");
  const Tensor view = file.tensor_view("b", device);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data()) % 8, 0U);
  EXPECT_TRUE(std::ranges::equal(bytes_of(view), file.bytes("b")));
  EXPECT_EQ(file.bytes_read(), 16U);
  EXPECT_EQ(bytes_of(file.slice("b", {{0, 1, 1}}, device)), bytes_of(view.narrow(0, 1, 1)));
}

TEST(Safetensors, ViewsOnOtherDevicesAreCopies) {
  const test::TemporaryFolder folder;
  HostDevice host;
  const std::vector<NamedTensor> tensors{{"t", counted(host, {3}, kFloat32)}};
  write_safetensors(folder / "a", tensors);
  const SafetensorsFile file(folder / "a");
  ForeignDevice foreign;
  const Tensor copy = file.tensor_view("t", foreign);
  EXPECT_NE(copy.data(), file.bytes("t").data());
  EXPECT_EQ(bytes_of(copy), bytes_of(tensors.front().tensor));
  EXPECT_EQ(file.bytes_read(), 12U);
  Float64OnlyDevice narrow_minded;
  EXPECT_EQ(message_of(ErrorKind::type_error, [&] { file.tensor_view("t", narrow_minded); }),
            "device 'host' does not support element type float32");
}

TEST(Safetensors, RefusesBoolsThatAreNeitherFalseNorTrue) {
  const test::TemporaryFolder folder;
  HostDevice device;
  put(folder / "a", test::safetensors_bytes(R"({"m":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})",
                                            std::string_view("\0\1\7", 3)));
  const SafetensorsFile file(folder / "a");
  const std::string expected = (folder / "a").string() + ": tensor 'm' holds the byte 7; a BOOL is 0 or 1";
  EXPECT_EQ(file_error_of([&] { file.tensor("m", device); }), expected);
  EXPECT_EQ(file_error_of([&] { file.tensor_view("m", device); }), expected);
  EXPECT_EQ(file_error_of([&] { file.slice("m", {{0, 1, 2}}, device); }), expected);
  EXPECT_EQ(file.slice("m", {{0, 0, 2}}, device).numel(), 2);
}

std::filesystem::path data_folder() { return std::filesystem::path(SHARDPROOF_SOURCE_DIR) / "tests" / "data"; }

std::vector<double> values_of(const SafetensorsFile& file, const std::string& name) {
  HostDevice device;
  const Tensor tensor = file.tensor(name, device);
  const Tensor wide = device.empty(tensor.shape(), kFloat64);
  device.copy(wide, tensor);
  std::vector<double> values(static_cast<std::size_t>(wide.numel()));
  device.download(std::as_writable_bytes(std::span(values)), wide);
  return values;
}

double max_difference(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

TEST(RecordedFiles, AreAllReadCompletely) {
  HostDevice device;
  int files = 0;
  for (const char* kind : {"goldens", "tables"}) {
    for (const auto& path : std::filesystem::recursive_directory_iterator(data_folder() / kind)) {
      if (path.path().extension() != ".safetensors") continue;
      const SafetensorsFile file(path.path());
      EXPECT_FALSE(file.entries().empty()) << path;
      for (const SafetensorsEntry& entry : file.entries()) {
        const Tensor tensor = file.tensor(entry.name, device);
        EXPECT_EQ(tensor.bytes(), entry.end - entry.begin);
        if (entry.dtype == kInt64 || entry.dtype == kBool) continue;
        for (const double value : values_of(file, entry.name)) ASSERT_TRUE(std::isfinite(value)) << entry.name;
      }
      ++files;
    }
  }
  EXPECT_GE(files, 26) << "there are more as models are added, never fewer";
}

// The descriptions state the largest differences between the recorded outputs: a check that the right bytes are read
// which shares no code with the reader.
TEST(RecordedFiles, HoldTheDifferencesThatTheirDescriptionsState) {
  int cases = 0;
  for (const auto& path : std::filesystem::recursive_directory_iterator(data_folder() / "goldens")) {
    if (path.path().extension() != ".json" || path.path().filename() == "config.json") continue;
    const Json description = read_json_file(path.path());
    const std::string stem = (path.path().parent_path() / path.path().stem()).string();
    const SafetensorsFile outputs(stem + ".outputs.safetensors");
    const SafetensorsFile inputs(stem + ".inputs.safetensors");
    // The largest over all outputs.
    double fp32_fp64 = 0, fp32_exact = 0, fp64_exact = 0;
    for (const JsonMember& output : description.at("output_shapes").members()) {
      const std::vector<double> fp32 = values_of(outputs, "fp32." + output.key);
      const std::vector<double> fp64 = values_of(outputs, "fp64." + output.key);
      const std::vector<double> exact = values_of(outputs, "exact." + output.key);
      fp32_fp64 = std::max(fp32_fp64, max_difference(fp32, fp64));
      fp32_exact = std::max(fp32_exact, max_difference(fp32, exact));
      fp64_exact = std::max(fp64_exact, max_difference(fp64, exact));
      const Json::Array& sizes = output.value.items();
      const Shape& shape = outputs.at("fp32." + output.key).shape;
      ASSERT_EQ(sizes.size(), static_cast<std::size_t>(shape.rank()));
      for (std::size_t i = 0; i < sizes.size(); ++i) EXPECT_EQ(shape[static_cast<int>(i)], sizes[i].as_int());
    }
    EXPECT_EQ(fp32_fp64, description.at("max_abs_fp32_fp64").as_double()) << path;
    EXPECT_EQ(fp32_exact, description.at("max_abs_fp32_exact").as_double()) << path;
    EXPECT_EQ(fp64_exact, description.at("max_abs_fp64_exact").as_double()) << path;
    for (const Json& name : description.at("tensor_args").items()) {
      EXPECT_NE(inputs.find(name.as_string()), nullptr) << path << ' ' << name.as_string();
    }
    ++cases;
  }
  EXPECT_GE(cases, 9);
}

TEST(RecordedFiles, SurviveBeingWrittenAgain) {
  const test::TemporaryFolder folder;
  HostDevice device;
  const SafetensorsFile file(data_folder() / "goldens/flux/tiny/weights.safetensors");
  std::vector<NamedTensor> tensors;
  for (const SafetensorsEntry& entry : file.entries()) {
    tensors.push_back({entry.name, file.tensor_view(entry.name, device)});
  }
  write_safetensors(folder / "a", tensors, file.metadata());
  const SafetensorsFile again(folder / "a");
  EXPECT_EQ(again.metadata(), file.metadata());
  ASSERT_EQ(again.entries().size(), file.entries().size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(again.entries()[i].name, file.entries()[i].name);
    EXPECT_TRUE(std::ranges::equal(again.bytes(tensors[i].name), file.bytes(tensors[i].name))) << tensors[i].name;
  }
}

}  // namespace
}  // namespace shardproof
