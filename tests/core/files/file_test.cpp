// Files: what reading refuses, and that a write replaces its target completely or not at all. Where the reason comes
// from the system, its words are compared too, since they are what users read.
#include "core/file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/utf8.h"
#include "tests/core/files/test_files.h"

namespace shardproof {
namespace {

using test::contents_of;
using test::file_error_of;
using test::put;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// Files may not grow beyond `bytes` while the object lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit old_{};
  void (*old_handler_)(int);
};

// Prints the message of the error that the call throws, as a user without rights, and ends the process.
template <class Call>
[[noreturn]] void report_as_nobody(Call call) {
  constexpr uid_t kNobody = 65534;
  if (::geteuid() == 0 && ::setuid(kNobody) != 0) std::_Exit(2);
  try {
    call();
  } catch (const Error& error) {
    std::fputs(error.what(), stderr);
    std::_Exit(0);
  }
  std::_Exit(1);
}

TEST(ReadTextFile, ReturnsAllBytes) {
  const test::TemporaryFolder folder;
  const std::string text = std::string(200'000, 'x') + std::string("\0end", 4);
  put(folder / "text", text);
  EXPECT_EQ(read_text_file(folder / "text"), text);
  put(folder / "empty", "");
  EXPECT_EQ(read_text_file(folder / "empty"), "");
}

TEST(ReadTextFile, RefusesWhatItCannotRead) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(file_error_of([&] { read_text_file(folder / "none"); }),
            "cannot open '" + (folder / "none").string() + "': No such file or directory");
  EXPECT_EQ(file_error_of([&] { read_text_file(folder.path()); }),
            "'" + folder.path().string() + "' is a folder; expected a file");
  EXPECT_EQ(file_error_of([&] { read_text_file(std::string("a\0b", 3)); }), "'a\\x00b': a path cannot hold a NUL byte");
  put(folder / "text", "123456");
  EXPECT_EQ(read_text_file(folder / "text", 6), "123456");
  EXPECT_EQ(file_error_of([&] { read_text_file(folder / "text", 5); }),
            "'" + (folder / "text").string() + "' is larger than 5 bytes, the most that is read");
  // Address 0 of a process is not mapped, so this file opens but cannot be read.
  EXPECT_EQ(file_error_of([] { read_text_file("/proc/self/mem"); }),
            "cannot read '/proc/self/mem': Input/output error");
}

TEST(ReadTextFileDeathTest, RefusesAFileWithoutPermission) {
  GTEST_FLAG_SET(death_test_style, "fast");
  const test::TemporaryFolder folder;
  ::chmod(folder.path().c_str(), 0755);
  put(folder / "secret", "x");
  ::chmod((folder / "secret").c_str(), 0);
  EXPECT_EXIT(report_as_nobody([&] { read_text_file(folder / "secret"); }), ::testing::ExitedWithCode(0),
              "cannot open '.*secret': Permission denied");
  EXPECT_EXIT(report_as_nobody([&] { MappedFile(folder / "secret"); }), ::testing::ExitedWithCode(0),
              "cannot open '.*secret': Permission denied");
}

TEST(MappedFile, ShowsTheBytesOfTheFile) {
  const test::TemporaryFolder folder;
  const std::string text(10'000, 'y');
  put(folder / "data", text);
  const MappedFile file(folder / "data");
  EXPECT_EQ(text_of(file), text);
  EXPECT_EQ(file.path(), folder / "data");
  put(folder / "empty", "");
  EXPECT_TRUE(MappedFile(folder / "empty").bytes().empty());
}

TEST(ReadTextFile, WaitsForTheEndOfAPipeButNotForEver) {
  const test::TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int writer = ::open(pipe.c_str(), O_RDWR);
  ASSERT_GE(writer, 0);
  ASSERT_EQ(::write(writer, "{", 1), 1);
  EXPECT_EQ(file_error_of([&] { read_text_file(pipe, 100, 50); }),
            "cannot read '" + pipe + "': it was not written to its end within 0.05 s");
  ::close(writer);
  EXPECT_EQ(read_text_file(pipe, 100, 50), "") << "nobody writes";
}

TEST(MappedFile, RefusesWhatIsNoRegularFile) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(file_error_of([&] { MappedFile(folder / "none"); }),
            "cannot open '" + (folder / "none").string() + "': No such file or directory");
  EXPECT_EQ(file_error_of([&] { MappedFile(folder.path()); }),
            "'" + folder.path().string() + "' is a folder; expected a file");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(file_error_of([&] { MappedFile(folder / "pipe"); }),
            "'" + (folder / "pipe").string() + "' is not a regular file");
  EXPECT_EQ(file_error_of([] { MappedFile("/dev/null"); }), "'/dev/null' is not a regular file");
}

TEST(WriteFileAtomically, CreatesAndReplacesFiles) {
  const test::TemporaryFolder folder;
  write_file_atomically(folder / "a", "first");
  EXPECT_EQ(contents_of(folder / "a"), "first");
  const std::string large(3'000'000, 'z');
  write_file_atomically(folder / "a", large);
  EXPECT_EQ(contents_of(folder / "a"), large);
  EXPECT_EQ(folder.entry_count(), 1U);
}

TEST(WriteFileAtomically, KeepsTheModeOfAFileThatItReplaces) {
  const test::TemporaryFolder folder;
  put(folder / "a", "old");
  ASSERT_EQ(::chmod((folder / "a").c_str(), 0640), 0);
  write_file_atomically(folder / "a", "new");
  struct stat status{};
  ASSERT_EQ(::stat((folder / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0640U);
}

TEST(WriteFileAtomically, FollowsSymbolicLinks) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directory(folder / "sub");
  put(folder / "sub/target", "old");
  std::filesystem::create_symlink("sub/target", folder / "link");
  write_file_atomically(folder / "link", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(contents_of(folder / "sub/target"), "new");
  std::filesystem::create_symlink(folder / "sub/fresh", folder / "dangling");
  write_file_atomically(folder / "dangling", "created");
  EXPECT_EQ(contents_of(folder / "sub/fresh"), "created");
  std::filesystem::create_symlink("loop", folder / "loop");
  EXPECT_EQ(file_error_of([&] { write_file_atomically(folder / "loop", "x"); }),
            "cannot write '" + (folder / "loop").string() + "': Too many levels of symbolic links");
}

TEST(WriteFileAtomically, NamesPathAndReasonWhenItCannotCreate) {
  const test::TemporaryFolder folder;
  EXPECT_EQ(file_error_of([&] { write_file_atomically(folder.path(), "x"); }),
            "cannot write '" + folder.path().string() + "': it is a folder");
  EXPECT_EQ(file_error_of([&] { write_file_atomically(folder / "none/a", "x"); }),
            "cannot create '" + (folder / "none/a").string() + "': No such file or directory");
  put(folder / "file", "");
  EXPECT_EQ(file_error_of([&] { write_file_atomically(folder / "file/a", "x"); }),
            "cannot create '" + (folder / "file/a").string() + "': Not a directory");
  EXPECT_EQ(file_error_of([&] { write_file_atomically("", "x"); }), "cannot write '': not a file name");
  EXPECT_EQ(folder.entry_count(), 1U);
}

TEST(WriteFileAtomicallyDeathTest, RefusesWithoutPermission) {
  GTEST_FLAG_SET(death_test_style, "fast");
  const test::TemporaryFolder folder;
  put(folder / "a", "old");
  ::chmod((folder / "a").c_str(), 0444);
  ::chmod(folder.path().c_str(), 0777);  // the folder would allow the rename
  EXPECT_EXIT(report_as_nobody([&] { write_file_atomically(folder / "a", "x"); }), ::testing::ExitedWithCode(0),
              "cannot write '.*a': Permission denied");
  ::chmod(folder.path().c_str(), 0555);
  EXPECT_EXIT(report_as_nobody([&] { write_file_atomically(folder / "b", "x"); }), ::testing::ExitedWithCode(0),
              "cannot create '.*b': Permission denied");
  ::chmod(folder.path().c_str(), 0755);
  EXPECT_EQ(contents_of(folder / "a"), "old");
  EXPECT_EQ(folder.entry_count(), 1U);
}

TEST(WriteFileAtomically, LeavesTheOldFileWhenSpaceRunsOut) {
  const test::TemporaryFolder folder;
  put(folder / "a", "old");
  {
    const FileSizeLimit limit(1000);
    EXPECT_EQ(file_error_of([&] { write_file_atomically(folder / "a", std::string(5000, 'x')); }),
              "cannot write '" + (folder / "a").string() + "': File too large");
  }
  EXPECT_EQ(contents_of(folder / "a"), "old");
  EXPECT_EQ(folder.entry_count(), 1U);
}

TEST(WriteFileAtomically, WritesStraightToDevices) {
  write_file_atomically("/dev/null", "x");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  EXPECT_EQ(file_error_of([] { write_file_atomically("/dev/full", "x"); }),
            "cannot write '/dev/full': No space left on device");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
}

// As /dev/stdout does where the shell has opened a file for it: others write to the same place, before and after.
TEST(WriteFileAtomically, WritesIntoADescriptorOfThisProcess) {
  const test::TemporaryFolder folder;
  const int file = ::open((folder / "a").c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_GE(file, 0);
  struct stat before{}, after{};
  ASSERT_EQ(::fstat(file, &before), 0);
  const std::string number = std::to_string(file);
  std::filesystem::create_symlink("/dev/fd/" + number, folder / "link");
  ASSERT_EQ(::write(file, "0", 1), 1);
  write_file_atomically("/dev/fd/" + number, "1");
  write_file_atomically("/proc/self/fd/" + number, "2");
  write_file_atomically("/proc/" + std::to_string(::getpid()) + "/fd/" + number, "3");
  write_file_atomically(folder / "link", "4");
  ASSERT_EQ(::write(file, "5", 1), 1);
  EXPECT_EQ(contents_of(folder / "a"), "012345");
  ASSERT_EQ(::stat((folder / "a").c_str(), &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino);
  EXPECT_EQ(folder.entry_count(), 2U);
  ASSERT_EQ(::unlink((folder / "a").c_str()), 0);
  write_file_atomically("/dev/fd/" + number, "6");  // without a name, too
  EXPECT_EQ(::lseek(file, 0, SEEK_CUR), 7);
  EXPECT_EQ(folder.entry_count(), 1U);
  ::close(file);
  EXPECT_EQ(file_error_of([&] { write_file_atomically("/dev/fd/" + number, "x"); }),
            "cannot write '/dev/fd/" + number + "': Bad file descriptor");
  const int read_only = ::open("/dev/null", O_RDONLY);
  const std::string name = "/dev/fd/" + std::to_string(read_only);
  EXPECT_EQ(file_error_of([&] { write_file_atomically(name, "x"); }),
            "cannot write '" + name + "': it is open for reading only");
  ::close(read_only);
}

TEST(WriteFileAtomically, WaitsForAFullPipeThatDoesNotWaitItself) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_NONBLOCK), 0);
  const std::string text(std::size_t{1} << 20U, 'x');
  const pid_t reader = ::fork();
  if (reader == 0) {
    ::close(ends[1]);
    (void)::fcntl(ends[0], F_SETFL, 0);
    std::size_t read = 0;
    std::array<char, 4096> buffer{};
    for (ssize_t count = 0; (count = ::read(ends[0], buffer.data(), buffer.size())) > 0;)
      read += static_cast<std::size_t>(count);
    ::_exit(read == text.size() ? 0 : 1);
  }
  ::close(ends[0]);
  write_file_atomically("/dev/fd/" + std::to_string(ends[1]), text);
  ::close(ends[1]);
  int status = -1;
  ASSERT_EQ(::waitpid(reader, &status, 0), reader);
  EXPECT_EQ(status, 0);
}

TEST(AtomicFile, LeavesNothingBehindWhenItIsNotCommitted) {
  const test::TemporaryFolder folder;
  put(folder / "a", "old");
  {
    AtomicFile file(folder / "a");
    file.write("half of the new te");
    EXPECT_EQ(contents_of(folder / "a"), "old");
  }
  EXPECT_EQ(contents_of(folder / "a"), "old");
  EXPECT_EQ(folder.entry_count(), 1U);
}

TEST(AtomicFile, HasNoNameUntilItIsComplete) {
  const test::TemporaryFolder folder;
  AtomicFile file(folder / "a");
  file.write("text");
  EXPECT_EQ(folder.entry_count(), 0U);
  file.commit();
  EXPECT_EQ(contents_of(folder / "a"), "text");
  EXPECT_EQ(folder.entry_count(), 1U);
}

TEST(AtomicFile, WritesToAPipeThatIsRead) {
  const test::TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  write_file_atomically(pipe, "text");
  std::array<char, 8> read{};
  EXPECT_EQ(::read(reader, read.data(), read.size()), 4);
  ::close(reader);
}

TEST(AtomicFile, RefusesUseAfterCommit) {
  const test::TemporaryFolder folder;
  AtomicFile file(folder / "a");
  file.write("x");
  file.commit();
  EXPECT_THAT(test::message_of(ErrorKind::internal_error, [&] { file.write("y"); }), HasSubstr("after it was closed"));
  EXPECT_THAT(test::message_of(ErrorKind::internal_error, [&] { file.commit(); }), HasSubstr("after it was closed"));
  EXPECT_EQ(contents_of(folder / "a"), "x");
}

TEST(AtomicFile, ReportsATargetThatBecameAFolder) {
  const test::TemporaryFolder folder;
  AtomicFile file(folder / "a");
  file.write("x");
  std::filesystem::create_directory(folder / "a");
  EXPECT_EQ(file_error_of([&] { file.commit(); }), "cannot write '" + (folder / "a").string() + "': Is a directory");
  EXPECT_EQ(folder.entry_count(), 1U);
}

TEST(Printable, EscapesCharactersThatActOnATerminal) {
  EXPECT_EQ(printable("\u009b31m"), "\\xc2\\x9b31m");  // what some terminals take for ESC [
  EXPECT_EQ(printable("a\u202eb\u2066c\u2028d\u200fe"),
            "a\\xe2\\x80\\xaeb\\xe2\\x81\\xa6c\\xe2\\x80\\xa8d\\xe2\\x80\\x8fe");
  EXPECT_EQ(printable("\u00a0\u2013\u2070\u20ac"), "\u00a0\u2013\u2070\u20ac");
}

TEST(Printable, KeepsLineEndsWhereLinesAreMeant) {
  EXPECT_EQ(printable_lines("a\n\tb\n\n"), "a\n\\x09b\n\n");
  EXPECT_EQ(printable_lines("a\x1b"), "a\\x1b");
  EXPECT_EQ(printable_lines(std::string(1000, 'x')), std::string(1000, 'x'));
  EXPECT_EQ(printable_lines(""), "");
}

TEST(Printable, EscapesControlBytesAndCutsLongText) {
  EXPECT_EQ(printable("plain é 😀"), "plain é 😀");
  EXPECT_EQ(printable(std::string("a\0\x1B[31m\x7F\xFF", 9)), "a\\x00\\x1b[31m\\x7f\\xff");
  EXPECT_EQ(printable("abcdef", 6), "abcdef");
  EXPECT_EQ(printable("abcdefg", 6), "abcdef...");
  EXPECT_EQ(printable("aé", 2), "aé");
}

TEST(Utf8, AcceptsExactlyTheValidSequences) {
  // Every two- and three-byte sequence, against the definition by decoded value.
  const auto encoded_length = [](unsigned value) { return value < 0x80 ? 1U : value < 0x800 ? 2U : 3U; };
  int valid = 0;
  for (unsigned a = 0xC0; a < 0xF0; ++a) {
    for (unsigned b = 0; b < 0x100; ++b) {
      for (unsigned c = 0; c < 0x100; c += 0x3F) {
        const std::string text{static_cast<char>(a), static_cast<char>(b), static_cast<char>(c)};
        const unsigned length = a < 0xE0 ? 2 : 3;
        const bool continued = (b & 0xC0U) == 0x80 && (length == 2 || (c & 0xC0U) == 0x80);
        const unsigned value =
            length == 2 ? (a & 0x1FU) << 6U | (b & 0x3FU) : (a & 0x0FU) << 12U | (b & 0x3FU) << 6U | (c & 0x3FU);
        const bool surrogate = value >= 0xD800 && value < 0xE000;
        const bool expected = continued && encoded_length(value) == length && !surrogate;
        ASSERT_EQ(utf8_length(text), expected ? length : 0U) << a << ' ' << b << ' ' << c;
        valid += expected ? 1 : 0;
      }
    }
  }
  EXPECT_GT(valid, 1000);
  EXPECT_TRUE(is_utf8("\xF0\x90\x80\x80\xF4\x8F\xBF\xBF"));
  EXPECT_FALSE(is_utf8("\xF0\x8F\xBF\xBF"));
  EXPECT_FALSE(is_utf8("\xF4\x90\x80\x80"));
  EXPECT_FALSE(is_utf8("\xF5\x80\x80\x80"));
  EXPECT_FALSE(is_utf8("ab\xE2\x82"));
  EXPECT_EQ(utf8_length(""), 0U);
}

}  // namespace
}  // namespace shardproof
