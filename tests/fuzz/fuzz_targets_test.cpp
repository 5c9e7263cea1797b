// The judge of answers to mutated files can find fault: with a message that names no file, with one that names no
// place in it, with a reader that throws something else.
#include "tests/fuzz/fuzz_targets.h"

#include <fstream>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace shardproof {
namespace {

using testing::StartsWith;

TEST(FindingAboutMessage, AcceptsAFileWithAKeyOrAnOffset) {
  for (const char* message :
       {"/some/f/a.json: key 'x.y' must be a list, got 3", "'/some/f/a.json': tensor 'w' is missing",
        "/some/f: no tensor 'w'", "/some/f/a.json: not valid JSON at byte 12 (line 1, column 13): odd",
        "/some/f/a.safetensors: 3 bytes; 8 are needed", "/some/f/a.json: the top level must be a list, got 3",
        "/some/f/a.json: key '' is not known here"})
    EXPECT_EQ(finding_about_message(message, "/some/f"), "") << message;
}

TEST(FindingAboutMessage, ObjectsToAMessageWithoutAFileOrAPlace) {
  EXPECT_THAT(finding_about_message("key 'x' must be a list", "/some/f"), StartsWith("names no file: "));
  for (const char* message :
       {"/some/f/a.json: not valid", "'/some/f/a.json' is damaged", "cannot read '/some/f/a.json': bad bytes",
        "'/some/f/a.json' and '/some/f/b.json' differ in 3 places", "/some/f/a.json must be a list, got 3"})
    EXPECT_THAT(finding_about_message(message, "/some/f"), StartsWith("names no key and no offset: ")) << message;
}

TEST(FindingAbout, ObjectsToInternalErrorsAndForeignExceptions) {
  const auto finding = [](std::function<void(const std::filesystem::path&)> read) {
    return finding_about({{}, "a.json", std::move(read)}, "/some/f");
  };
  EXPECT_EQ(finding([](const auto&) {}), "");
  EXPECT_EQ(finding([](const auto&) { fail(ErrorKind::file_error, "/some/f/a.json: key 'x' is missing"); }), "");
  EXPECT_EQ(finding([](const auto&) { fail(ErrorKind::internal_error, "/some/f/a.json: key 'x'"); }),
            "an internal error: /some/f/a.json: key 'x'");
  EXPECT_EQ(finding([](const auto&) { throw std::runtime_error("x"); }), "an exception of another type: x");
}

TEST(FuzzTargets, AcceptTheirCorpus) {
  for (const auto& [name, target] : fuzz_targets()) {
    const std::filesystem::path folder = prepared_folder(name, "corpus");
    for (const std::filesystem::path& path : target.corpus) {
      // The case of another model has inputs that do not stand beside it here; the rest is read as it is.
      if (path.filename() == "controlnet.json") continue;
      std::ofstream(folder / target.file_name, std::ios::binary | std::ios::trunc) << bytes_of(path);
      EXPECT_NO_THROW(target.read(folder)) << path;
    }
    std::filesystem::remove_all(folder);
  }
}

}  // namespace
}  // namespace shardproof
