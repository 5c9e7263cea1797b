// What is said when the module with LibTorch is missing, or is not that of this build: where it was looked for, and
// what was expected there. Nothing of LibTorch is loaded.
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "real/torch_device.h"
#include "tests/core/files/test_files.h"
#include "tests/support/thrown_error.h"

namespace shardproof::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string message_with_module(const std::string& path) {
  ::setenv("SHARDPROOF_TORCH_LIBRARY", path.c_str(), 1);
  const auto error = thrown_by([] { make_torch_device(); });
  ::unsetenv("SHARDPROOF_TORCH_LIBRARY");
  EXPECT_TRUE(error && error->kind == ErrorKind::file_error);
  return error ? error->message : "";
}

TEST(TorchModule, IsNamedWhereItIsMissing) {
  EXPECT_EQ(message_with_module("/no such folder/module.so"),
            "the module with LibTorch is missing: there is no '/no such folder/module.so'; build the target "
            "shardproof_torch, or say where it is with SHARDPROOF_TORCH_LIBRARY");
  // Beside the test there is none, either.
  const auto error = thrown_by([] { make_torch_device(); });
  ASSERT_TRUE(error.has_value());
  EXPECT_THAT(error->message, HasSubstr("/libshardproof_torch.so' and no '"));
}

TEST(TorchModule, IsNamedWhereItCannotBeLoaded) {
  const TemporaryFolder folder;
  const std::string path = (folder / "text.so").string();
  std::ofstream(path) << "no library";
  EXPECT_THAT(message_with_module(path), StartsWith("the module with LibTorch cannot be loaded (" + path + ": "));
  // A library of something else: that of this function.
  Dl_info own{};
  ASSERT_NE(::dladdr(reinterpret_cast<void*>(&::getenv), &own), 0);
  EXPECT_EQ(message_with_module(own.dli_fname),
            fmt::format("'{}' has no function shardproof_torch_module; expected the module of this build; "
                        "SHARDPROOF_TORCH_LIBRARY may say where that is",
                        own.dli_fname));
}

TEST(TorchModule, IsRefusedIfItIsCutShortOrNoFile) {
  const TemporaryFolder folder;
  const std::string path = (folder / "half.so").string();
  std::filesystem::copy_file(SHARDPROOF_MODULE_OF_ANOTHER_BUILD, path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
  EXPECT_THAT(message_with_module(path), HasSubstr("' is cut short: it has "));
  EXPECT_EQ(message_with_module(folder.path().string()),
            "the module with LibTorch cannot be loaded ('" + folder.path().string() +
                "' is no regular file); build the target shardproof_torch, or say where it is with "
                "SHARDPROOF_TORCH_LIBRARY");
}

TEST(TorchModule, IsRefusedIfItIsOfAnotherBuild) {
  EXPECT_THAT(message_with_module(SHARDPROOF_MODULE_OF_ANOTHER_BUILD),
              StartsWith("'" SHARDPROOF_MODULE_OF_ANOTHER_BUILD
                         "' is of another build: its interface is '0.0.0-other', expected '"));
}

}  // namespace
}  // namespace shardproof::test
