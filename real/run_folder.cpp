#include "real/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"

namespace shardproof {
namespace {

namespace fs = std::filesystem;

// Of all folders of this user. Others do not begin like this, so that nothing else is removed.
std::string prefix() { return fmt::format("shardproof-run-{}-", ::geteuid()); }

Socket opened(const std::string& path) {
  return Socket(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

// Whether the path still is the folder that was opened by it.
bool is_still_there(const std::string& path, const Socket& folder) {
  struct stat opened{}, named{};
  return ::fstat(folder.get(), &opened) == 0 && ::lstat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

// The hold on it; nothing if it was taken for that of a dead run, and removed, before it could be held.
std::optional<Socket> held(const std::string& path) {
  Socket folder = opened(path);
  if (!folder.is_open() && errno == ENOENT) return std::nullopt;
  struct stat status{};
  SHARDPROOF_CHECK(folder.is_open() && ::fstat(folder.get(), &status) == 0, file_error,
                   "the folder '{}' cannot be used: {}", printable(path), error_text(errno));
  SHARDPROOF_CHECK(status.st_uid == ::geteuid(), file_error, "the folder '{}' is that of another user, {}",
                   printable(path), status.st_uid);
  while (::flock(folder.get(), LOCK_SH) != 0) {
    if (errno != EINTR) return Socket();  // a file system without locks: nobody can remove it by one, either
  }
  return is_still_there(path, folder) ? std::optional(std::move(folder)) : std::nullopt;
}

void remove_folder(const std::string& path) {
  std::error_code problem;
  fs::remove_all(path, problem);
}

void remove_dead_ones(const std::string& base) {
  std::error_code problem;
  for (fs::directory_iterator at(base, problem), end; !problem && at != end; at.increment(problem)) {
    const std::string path = at->path().string();
    if (!at->path().filename().string().starts_with(prefix())) continue;
    const Socket folder = opened(path);
    struct stat status{};
    const bool is_ours = folder.is_open() && ::fstat(folder.get(), &status) == 0 && status.st_uid == ::geteuid();
    if (!is_ours || ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0) continue;
    if (is_still_there(path, folder)) remove_folder(path);
  }
}

// More than once only if others remove it at the same moment.
constexpr int kMostAttempts = 100;

}  // namespace

std::string run_folder_base(const std::string& memory) {
  if (::access(memory.c_str(), W_OK | X_OK) == 0) return memory;
  std::error_code problem;
  fs::path folder = fs::temp_directory_path(problem);
  // Ranks may have other working folders than this process.
  if (!problem) folder = fs::absolute(folder, problem);
  SHARDPROOF_CHECK(!problem, file_error,
                   "there is no place for what ranks share: '{}' cannot be written to, and there is no folder for "
                   "temporary files: {}; expected the name of one in TMPDIR",
                   printable(memory), problem.message());
  return folder.string();
}

RunFolder RunFolder::new_one(const std::string& base) {
  remove_dead_ones(base);
  std::string path;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    path = (fs::path(base) / (prefix() + "XXXXXX")).string();
    if (::mkdtemp(path.data()) == nullptr) break;
    if (std::optional<Socket> lock = held(path)) return {path, std::move(*lock)};
  }
  fail(ErrorKind::file_error, "no folder like '{}' can be made: {}", printable(path), error_text(errno));
}

RunFolder RunFolder::shared(const std::string& name, const std::string& base) {
  const std::string path = (fs::path(base) / (prefix() + name)).string();
  remove_dead_ones(base);
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) break;
    if (std::optional<Socket> lock = held(path)) return {path, std::move(*lock)};
  }
  fail(ErrorKind::file_error, "the folder '{}' cannot be made: {}", printable(path), error_text(errno));
}

RunFolder RunFolder::made_by_another(const std::string& path) {
  Socket folder = opened(path);
  if (folder.is_open()) (void)::flock(folder.get(), LOCK_SH);
  return {path, std::move(folder)};
}

void RunFolder::remove() const { remove_folder(path_); }

}  // namespace shardproof
