// Folders of runs: those of dead runs go when the next one comes, and those of living ones, of others and of other
// names stay, also where several processes make and remove them at once.
#include "real/run_folder.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/core/files/test_files.h"
#include "tests/support/thrown_error.h"

namespace shardproof {
namespace {

namespace fs = std::filesystem;
using test::put;
using test::TemporaryFolder;

// As a run that was killed leaves it.
fs::path dead_folder(const TemporaryFolder& base, const std::string& name) {
  const fs::path path = base / fmt::format("shardproof-run-{}-{}", ::geteuid(), name);
  fs::create_directories(path / "ompi.here.0");
  put(path / "ompi.here.0/segment", "what ranks shared");
  return path;
}

TEST(RunFolder, RemovesWhatDeadRunsHaveLeftAndNothingElse) {
  const TemporaryFolder base, elsewhere;
  put(elsewhere / "file", "kept");
  const fs::path dead = dead_folder(base, "dead"), other = base / "shardproof-run-4294967290-dead",
                 link = base / fmt::format("shardproof-run-{}-link", ::geteuid());
  fs::create_directory(other);
  fs::create_directory(base / "results");
  put(base / fmt::format("shardproof-run-{}-file", ::geteuid()), "kept");
  fs::create_directory_symlink(elsewhere.path(), link);
  const RunFolder living = RunFolder::new_one(base.path());
  EXPECT_FALSE(fs::exists(dead));
  const RunFolder another = RunFolder::new_one(base.path());
  EXPECT_NE(living.path(), another.path());
  EXPECT_TRUE(fs::is_directory(living.path()));
  EXPECT_TRUE(fs::is_directory(other));
  EXPECT_TRUE(fs::is_directory(base / "results"));
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_TRUE(fs::exists(elsewhere / "file"));
  EXPECT_EQ(base.entry_count(), 6U);
  another.remove();
  EXPECT_EQ(base.entry_count(), 5U);
}

TEST(RunFolder, LivesAsLongAsOneOfThoseWhoShareIt) {
  const TemporaryFolder base;
  std::optional<RunFolder> first = RunFolder::shared("7", base.path());
  std::optional<RunFolder> second = RunFolder::shared("7", base.path());
  std::optional<RunFolder> third = RunFolder::made_by_another(first->path());
  const fs::path path = first->path();
  EXPECT_EQ(second->path(), path);
  for (std::optional<RunFolder>* const one : {&first, &second, &third}) {
    RunFolder::new_one(base.path()).remove();
    EXPECT_TRUE(fs::exists(path));
    one->reset();
  }
  RunFolder::new_one(base.path()).remove();
  EXPECT_FALSE(fs::exists(path));
}

TEST(RunFolderBase, IsMemoryOrWhereTemporaryFilesAre) {
  const TemporaryFolder memory, files;
  const char* const before = std::getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  const auto base = [&](const std::string& temporary, const std::string& of_memory = "/nowhere") {
    ::setenv("TMPDIR", temporary.c_str(), 1);
    return run_folder_base(of_memory);
  };
  EXPECT_EQ(base(files.path(), memory.path()), memory.path());
  EXPECT_EQ(base(files.path()), files.path());
  EXPECT_EQ(base("."), fs::absolute("."));
  put(files / "file", "");
  for (const std::string& wrong : {std::string("/nowhere/else"), std::string(), (files / "file").string()}) {
    const auto error = test::thrown_by([&] { (void)base(wrong); });
    ASSERT_TRUE(error) << wrong;
    EXPECT_EQ(error->kind, ErrorKind::file_error);
    EXPECT_THAT(error->message, testing::ContainsRegex("'/nowhere' cannot be .*; expected the name of one in TMPDIR"));
  }
  before == nullptr ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", kept.c_str(), 1);
}

TEST(RunFolder, IsNotThatOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make a folder for another user";
  const TemporaryFolder base;
  const fs::path path = dead_folder(base, "7");
  constexpr uid_t kNobody = 65534;
  ASSERT_EQ(::chown(path.c_str(), kNobody, kNobody), 0);
  RunFolder::new_one(base.path()).remove();
  EXPECT_TRUE(fs::exists(path));
  try {
    (void)RunFolder::shared("7", base.path());
    ADD_FAILURE() << "it was used";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("is that of another user, 65534"));
  }
  EXPECT_THROW((void)RunFolder::new_one((base / "nowhere").string()), Error);
}

// Each looks whether its own are there while it holds them, as others come and go.
TEST(RunFolder, IsNeverTakenFromAProcessThatHoldsIt) {
  const TemporaryFolder base;
  constexpr int kProcesses = 4, kRounds = 100;
  std::vector<pid_t> processes;
  for (int i = 0; i < kProcesses; ++i) {
    processes.push_back(::fork());
    if (processes.back() != 0) continue;
    for (int round = 0; round < kRounds; ++round) {
      const RunFolder shared = RunFolder::shared("7", base.path()), own = RunFolder::new_one(base.path());
      put(fs::path(own.path()) / "segment", "x");
      const bool is_there = fs::exists(shared.path()) && fs::exists(fs::path(own.path()) / "segment");
      if (!is_there) ::_exit(1);
      own.remove();
    }
    ::_exit(0);
  }
  for (const pid_t process : processes) {
    int status = -1;
    EXPECT_EQ(::waitpid(process, &status, 0), process);
    EXPECT_EQ(status, 0);
  }
  RunFolder::new_one(base.path()).remove();
  EXPECT_EQ(base.entry_count(), 0U);
}

}  // namespace
}  // namespace shardproof
