// Safetensors files that are not as they should be: each defect gives one file_error that names file, tensor, value and
// expectation, and whatever bytes a file holds, opening and reading it either succeeds or throws Error.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/host_memory.h"
#include "core/random.h"
#include "core/safetensors.h"
#include "tests/core/files/safetensors_files.h"
#include "tests/core/files/test_files.h"

namespace shardproof {
namespace {

using test::file_error_of;
using test::put;
using test::safetensors_bytes;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class MalformedSafetensors : public ::testing::Test {
 protected:
  // What is said about a file of these bytes, without the file's name, with which it must begin.
  std::string refusal_of_bytes(std::string_view bytes) {
    const std::filesystem::path path = folder_ / "w.safetensors";
    put(path, bytes);
    const std::string message = file_error_of([&] { SafetensorsFile{path}; });
    const std::string beginning = path.string() + ": ";
    EXPECT_THAT(message, StartsWith(beginning));
    return message.substr(std::min(message.size(), beginning.size()));
  }
  std::string refusal_of(std::string_view header, std::size_t data_bytes) {
    return refusal_of_bytes(safetensors_bytes(header, std::string(data_bytes, '\0')));
  }

  test::TemporaryFolder folder_;
};

constexpr std::string_view kSmallHeader = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                          R"("b":{"dtype":"BOOL","shape":[3,1],"data_offsets":[8,11]}})";

TEST_F(MalformedSafetensors, CutShortAtAnyByteIsRefused) {
  const std::string bytes = safetensors_bytes(kSmallHeader, std::string(11, '\1'));
  put(folder_ / "good", bytes);
  EXPECT_EQ(SafetensorsFile(folder_ / "good").entries().size(), 2U);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const std::string message = refusal_of_bytes(std::string_view(bytes).substr(0, length));
    if (length < 8) {
      EXPECT_EQ(message, std::to_string(length) +
                             " bytes; a safetensors file begins with 8 bytes that hold the length of its header");
    } else if (length < 8 + kSmallHeader.size()) {
      EXPECT_EQ(message, "a header of " + std::to_string(kSmallHeader.size()) + " bytes does not fit into a file of " +
                             std::to_string(length) + " bytes; the file is cut short or damaged");
    } else {
      EXPECT_THAT(message, HasSubstr("bytes of data (is it cut short?)"));
    }
  }
}

TEST_F(MalformedSafetensors, ExtraBytesAreRefused) {
  EXPECT_EQ(refusal_of(kSmallHeader, 12), "bytes 11 to 12 of the data, after the last tensor, belong to no tensor");
  EXPECT_EQ(refusal_of("{}", 3), "bytes 0 to 3 of the data, after the last tensor, belong to no tensor");
}

TEST_F(MalformedSafetensors, HeaderLengthsThatCannotBeAreRefused) {
  EXPECT_EQ(refusal_of_bytes(std::string(8, '\xFF')),
            "bytes 0 to 7 say header length 18446744073709551615; at most 100000000 is allowed (is this a safetensors "
            "file?)");
  EXPECT_THAT(refusal_of_bytes("PK\3\4 is how archives begin"), HasSubstr("is this a safetensors file?"));
  EXPECT_EQ(refusal_of_bytes(std::string("\xFF\0\0\0\0\0\0\0{}", 10)),
            "a header of 255 bytes does not fit into a file of 10 bytes; the file is cut short or damaged");
  EXPECT_EQ(refusal_of_bytes(std::string("\x00\xE1\xF5\x05\0\0\0\0{}", 10)),
            "a header of 100000000 bytes does not fit into a file of 10 bytes; the file is cut short or damaged");
  EXPECT_EQ(refusal_of_bytes(std::string("\x01\xE1\xF5\x05\0\0\0\0{}", 10)),
            "bytes 0 to 7 say header length 100000001; at most 100000000 is allowed (is this a safetensors file?)");
}

TEST_F(MalformedSafetensors, HeadersThatAreNoObjectAreRefused) {
  EXPECT_EQ(refusal_of("", 0), "the header must begin with '{', got ''");
  EXPECT_EQ(refusal_of(" {}", 0), "the header must begin with '{', got ' '");
  EXPECT_EQ(refusal_of("[]", 0), "the header must begin with '{', got '['");
  EXPECT_THAT(refusal_of("{\"a\":", 0), StartsWith("header: not valid JSON at byte 5"));
  EXPECT_EQ(refusal_of(std::string_view("{}\0\0", 4), 0), "header: not valid JSON at byte 2: a NUL byte");
  EXPECT_THAT(refusal_of("{} x", 0), StartsWith("header: not valid JSON at byte 3"));
  EXPECT_THAT(refusal_of("{\"\xFF\":1}", 0), StartsWith("header: not valid JSON at byte 2"));
  std::string deep = "{\"__metadata__\":";
  for (int i = 0; i < 1'000'000; ++i) deep += "{\"a\":";
  EXPECT_EQ(refusal_of(deep, 0), "header: JSON nested deeper than 64 levels");
  std::string many = "{\"a\":[0";
  for (int i = 0; i < 2'100'000; ++i) many += ",0";
  EXPECT_EQ(refusal_of(many + "]}", 0), "header: more than 2000000 JSON values, the most that is read");
}

TEST_F(MalformedSafetensors, PaddingBehindTheHeaderIsAllowed) {
  put(folder_ / "good", safetensors_bytes(std::string(kSmallHeader) + "   ", std::string(11, '\1')));
  EXPECT_EQ(SafetensorsFile(folder_ / "good").entries().size(), 2U);
}

TEST_F(MalformedSafetensors, DuplicateKeysAreRefused) {
  constexpr std::string_view kTensor = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  const std::string twice = "{" + std::string(kTensor) + "," + std::string(kTensor) + "}";
  EXPECT_EQ(refusal_of(twice, 4), "header: key 'a' stands twice");
  EXPECT_EQ(refusal_of(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4),
            "header: key 'a.dtype' stands twice");
  EXPECT_EQ(refusal_of(R"({"__metadata__":{"k":"1","k":"2"}})", 0), "header: key '__metadata__.k' stands twice");
}

TEST_F(MalformedSafetensors, MetadataMustBeTexts) {
  EXPECT_EQ(refusal_of(R"({"__metadata__":[]})", 0), "header: key '__metadata__' must be an object, got []");
  EXPECT_EQ(refusal_of(R"({"__metadata__":{"k":1}})", 0), "header: key '__metadata__.k' must be a string, got 1");
}

TEST_F(MalformedSafetensors, EntriesMustHaveTheirThreeKeys) {
  EXPECT_EQ(refusal_of(R"({"a":5})", 0), "header: key 'a' must be an object, got 5");
  EXPECT_EQ(refusal_of(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4), "header: key 'a.dtype' is missing");
  EXPECT_EQ(refusal_of(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4), "header: key 'a.shape' is missing");
  EXPECT_EQ(refusal_of(R"({"a":{"dtype":"F32","shape":[1]}})", 4), "header: key 'a.data_offsets' is missing");
  EXPECT_EQ(refusal_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1}})", 4),
            "header: key 'a.more' is not known here; known: dtype, shape, data_offsets");
}

TEST_F(MalformedSafetensors, OtherElementTypesAreRefusedByName) {
  const auto of_type = [&](const std::string& dtype) {
    return refusal_of(R"({"x":{"dtype":)" + dtype + R"(,"shape":[1],"data_offsets":[0,4]}})", 4);
  };
  constexpr std::string_view kSupported = "; supported: F64, F32, BF16, F16, I64, BOOL";
  for (const char* name : {"F8_E4M3", "F8_E5M2", "I8", "I16", "I32", "U8", "U16", "U32", "U64", "C64"}) {
    const std::string quoted = '"' + std::string(name) + '"';
    EXPECT_EQ(of_type(quoted), "unsupported dtype " + quoted + " of tensor 'x'" + std::string(kSupported));
  }
  EXPECT_EQ(of_type("\"FOO\""), "unknown dtype \"FOO\" of tensor 'x'" + std::string(kSupported));
  EXPECT_EQ(of_type("\"f32\""), "unknown dtype \"f32\" of tensor 'x'" + std::string(kSupported));
  EXPECT_EQ(of_type("32"), "header: key 'x.dtype' must be a string, got 32");
}

TEST_F(MalformedSafetensors, ShapesThatCannotBeAreRefused) {
  const auto of_shape = [&](const std::string& shape) {
    return refusal_of(R"({"x":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,4]}})", 4);
  };
  EXPECT_EQ(of_shape("4"), "header: key 'x.shape' must be a list, got 4");
  EXPECT_EQ(of_shape("[-1]"), "header: key 'x.shape[0]' must be an integer >= 0, got -1");
  EXPECT_EQ(of_shape("[1,1.0]"), "header: key 'x.shape[1]' must be an integer >= 0, got 1.0");
  EXPECT_EQ(of_shape("[1,1,1,1,1,1,1,1,1]"), "tensor 'x' has 9 dimensions; at most 8 are supported");
  EXPECT_EQ(of_shape("[4294967296,4294967296]"),
            "tensor 'x' of shape [4294967296, 4294967296] is too large: its size does not fit 64 bits");
  EXPECT_EQ(of_shape("[2305843009213693952]"),
            "tensor 'x' of shape [2305843009213693952] is too large: its size does not fit 64 bits");
  EXPECT_EQ(of_shape("[0,4611686018427387904,4]"),
            "tensor 'x' of shape [0, 4611686018427387904, 4] is too large: its size does not fit 64 bits");
  EXPECT_EQ(of_shape("[9223372036854775808]"),
            "header: key 'x.shape[0]': integer 9223372036854775808 does not fit 64 bits");
  // 2^62 + 1 elements of 4 bytes are 4 bytes modulo 2^64.
  EXPECT_THAT(of_shape("[4611686018427387905]"), HasSubstr("is too large"));
  EXPECT_EQ(of_shape("[2]"), "tensor 'x' has 4 bytes (data_offsets [0, 4]), but float32 of shape [2] needs 8");
  EXPECT_EQ(of_shape("[0]"), "tensor 'x' has 4 bytes (data_offsets [0, 4]), but float32 of shape [0] needs 0");
}

TEST_F(MalformedSafetensors, OffsetsThatCannotBeAreRefused) {
  const auto of_offsets = [&](const std::string& offsets) {
    return refusal_of(R"({"x":{"dtype":"F32","shape":[1],"data_offsets":)" + offsets + "}}", 4);
  };
  EXPECT_EQ(of_offsets("0"), "header: key 'x.data_offsets' must be a list, got 0");
  EXPECT_EQ(of_offsets("[4]"), "header: key 'x.data_offsets' must be [begin, end], got [4]");
  EXPECT_EQ(of_offsets("[0,4,8]"), "header: key 'x.data_offsets' must be [begin, end], got [0,4,8]");
  EXPECT_EQ(of_offsets("[-4,0]"), "header: key 'x.data_offsets[0]' must be an integer >= 0, got -4");
  EXPECT_EQ(of_offsets("[0,\"4\"]"), "header: key 'x.data_offsets[1]' must be an integer >= 0, got \"4\"");
  EXPECT_EQ(of_offsets("[4,0]"), "tensor 'x' has data_offsets [4, 0]; the begin lies after the end");
  EXPECT_EQ(of_offsets("[1,5]"),
            "tensor 'x' has data_offsets [1, 5]; the file has only 4 bytes of data (is it cut short?)");
  EXPECT_EQ(of_offsets("[9223372036854775803,9223372036854775807]"),
            "tensor 'x' has data_offsets [9223372036854775803, 9223372036854775807]; the file has only 4 bytes of data "
            "(is it cut short?)");
  EXPECT_EQ(of_offsets("[0,2]"), "tensor 'x' has 2 bytes (data_offsets [0, 2]), but float32 of shape [1] needs 4");
}

TEST_F(MalformedSafetensors, OverlapsAndHolesAreRefused) {
  const auto layout = [&](int begin_a, int begin_b, std::size_t data) {
    const auto tensor = [](int begin) {
      return R"({"dtype":"F32","shape":[2],"data_offsets":[)" + std::to_string(begin) + "," +
             std::to_string(begin + 8) + "]}";
    };
    return refusal_of("{\"a\":" + tensor(begin_a) + ",\"b\":" + tensor(begin_b) + "}", data);
  };
  EXPECT_EQ(layout(0, 4, 12), "tensors 'a' and 'b' overlap: the first ends at byte 8, the second begins at byte 4");
  EXPECT_EQ(layout(4, 0, 12), "tensors 'b' and 'a' overlap: the first ends at byte 8, the second begins at byte 4");
  EXPECT_EQ(layout(0, 0, 8), "tensors 'a' and 'b' overlap: the first ends at byte 8, the second begins at byte 0");
  EXPECT_EQ(layout(0, 12, 20), "bytes 8 to 12 of the data, before tensor 'b', belong to no tensor");
  EXPECT_EQ(layout(4, 12, 20), "bytes 0 to 4 of the data, before tensor 'a', belong to no tensor");
  EXPECT_EQ(layout(0, 8, 20), "bytes 16 to 20 of the data, after the last tensor, belong to no tensor");
}

TEST_F(MalformedSafetensors, EmptyTensorsMayStandAnywhereButInsideOthers) {
  const auto with_empty_at = [](int begin) {
    return R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"z":{"dtype":"F32","shape":[0],"data_offsets":[)" +
           std::to_string(begin) + "," + std::to_string(begin) + "]}}";
  };
  for (const int begin : {0, 8}) {
    put(folder_ / "good", safetensors_bytes(with_empty_at(begin), std::string(8, '\0')));
    EXPECT_EQ(SafetensorsFile(folder_ / "good").bytes("z").size(), 0U);
  }
  EXPECT_EQ(refusal_of(with_empty_at(4), 8),
            "tensors 'a' and 'z' overlap: the first ends at byte 8, the second begins at byte 4");
  EXPECT_THAT(refusal_of(with_empty_at(9), 8), HasSubstr("the file has only 8 bytes of data"));
}

TEST_F(MalformedSafetensors, NamesAreEscapedInMessages) {
  EXPECT_EQ(refusal_of(R"({"a\u001b[31m\n":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
            "unsupported dtype \"U8\" of tensor 'a\\x1b[31m\\x0a'; supported: F64, F32, BF16, F16, I64, BOOL");
}

TEST_F(MalformedSafetensors, PathsThatAreNoFilesAreRefused) {
  EXPECT_EQ(file_error_of([&] { SafetensorsFile{folder_ / "none"}; }),
            "cannot open '" + (folder_ / "none").string() + "': No such file or directory");
  EXPECT_EQ(file_error_of([&] { SafetensorsFile{folder_.path()}; }),
            "'" + folder_.path().string() + "' is a folder; expected a file");
}

// Changes of one file, each a pure function of its number.
class Mutator {
 public:
  std::string mutated(std::string bytes, std::uint64_t number) {
    next_ = number * 64;
    const int changes = 1 + static_cast<int>(draw(2));
    for (int i = 0; i < changes && !bytes.empty(); ++i) change(bytes);
    return bytes;
  }

 private:
  std::size_t draw(std::size_t n) {
    return static_cast<std::size_t>(random_.below(next_++, static_cast<std::int64_t>(n)));
  }

  void change(std::string& bytes) {
    static const std::vector<std::string> pieces{"0",
                                                 "-1",
                                                 "1e9",
                                                 "4294967296",
                                                 "9223372036854775807",
                                                 "18446744073709551615",
                                                 "[",
                                                 "{",
                                                 "\"",
                                                 ",",
                                                 "null",
                                                 "\"F64\"",
                                                 "\"I32\"",
                                                 "[]",
                                                 "{}",
                                                 "\\u0000",
                                                 "\"a\":",
                                                 "\xFF",
                                                 " "};
    const std::size_t at = draw(bytes.size());
    const std::size_t count = std::min(bytes.size() - at, 1 + draw(12));
    switch (draw(8)) {
      case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << draw(8))); break;
      case 1: bytes[at] = static_cast<char>(draw(256)); break;
      case 2: bytes.erase(at, count); break;
      case 3: bytes.insert(at, bytes.substr(draw(bytes.size()), count)); break;
      case 4: bytes.resize(at); break;
      case 5: bytes.replace(at, count, pieces[draw(pieces.size())]); break;
      case 6: replace_digit(bytes, at); break;
      default: bytes.append(count, '\0'); break;
    }
  }

  // The next digit from `at` on: most such files differ from a valid one in a single number.
  void replace_digit(std::string& bytes, std::size_t at) {
    const std::size_t digit = bytes.find_first_of("0123456789", at);
    if (digit != std::string::npos) bytes[digit] = static_cast<char>('0' + draw(10));
  }

  RandomStream random_{20'000, "mutations"};
  std::uint64_t next_ = 0;
};

// Reads every tensor of the file in every way.
std::size_t read_all(const SafetensorsFile& file, Device& device) {
  std::size_t sum = 0;
  for (const SafetensorsEntry& entry : file.entries()) {
    for (const std::byte byte : file.bytes(entry.name)) sum += std::to_integer<std::size_t>(byte);
    sum += file.tensor(entry.name, device).bytes();
    sum += test::bytes_of(file.tensor_view(entry.name, device)).size();
    if (entry.shape.rank() > 0) sum += file.slice(entry.name, {{0, 0, entry.shape[0] / 2}}, device).bytes();
  }
  return sum;
}

TEST_F(MalformedSafetensors, TwentyThousandMutationsAreReadOrRefused) {
  HostDevice device;
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"BOOL","shape":[4],"data_offsets":[24,28]},)"
      R"("c":{"dtype":"I64","shape":[],"data_offsets":[28,36]},)"
      R"("d":{"dtype":"BF16","shape":[0,7],"data_offsets":[36,36]}} )";
  const std::string good = safetensors_bytes(header, std::string(36, '\1'));
  const std::filesystem::path path = folder_ / "mutated";
  put(path, good);
  const std::size_t sum = read_all(SafetensorsFile(path), device);
  EXPECT_GT(sum, 36U);
  Mutator mutator;
  int read = 0;
  int refused = 0;
  for (std::uint64_t number = 0; number < 20'000; ++number) {
    std::filesystem::remove(path);  // some file systems wait for the disk when a file is emptied and filled again
    put(path, mutator.mutated(good, number));
    try {
      const SafetensorsFile file(path);
      read_all(file, device);
      ++read;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::file_error) << "mutation " << number << ": " << error.what();
      ASSERT_THAT(error.what(), HasSubstr(path.string())) << "mutation " << number;
      ++refused;
    }
  }
  // Most changes break the file; those that meet a value, a name or a space leave it valid.
  EXPECT_GT(read, 500);
  EXPECT_GT(refused, 10'000);
  RecordProperty("read", read);
}

}  // namespace
}  // namespace shardproof
