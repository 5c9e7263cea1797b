#include "core/file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/utf8.h"

namespace shardproof {

namespace {

std::string reason(int error) { return std::generic_category().message(error); }

// Owns a descriptor during an operation that may throw.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int value() const { return value_; }

 private:
  int value_;
};

int open_to_read(const std::filesystem::path& path, int flags, struct stat& status) {
  SHARDPROOF_CHECK(path.native().find('\0') == std::string::npos, file_error, "'{}': a path cannot hold a NUL byte",
                   printable_path(path));
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (descriptor < 0) fail(ErrorKind::file_error, "cannot open '{}': {}", printable_path(path), reason(errno));
  if (::fstat(descriptor, &status) != 0) {
    const int error = errno;
    ::close(descriptor);
    fail(ErrorKind::file_error, "cannot examine '{}': {}", printable_path(path), reason(error));
  }
  if (S_ISDIR(status.st_mode)) {
    ::close(descriptor);
    fail(ErrorKind::file_error, "'{}' is a folder; expected a file", printable_path(path));
  }
  return descriptor;
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

// A rename is durable once its folder is on the disk; file systems that cannot do that are no reason to fail.
void synchronize_folder_of(const std::filesystem::path& path) {
  const Descriptor descriptor(::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.value() >= 0) (void)::fsync(descriptor.value());
}

}  // namespace

namespace {

// Characters beyond ASCII that act on a terminal instead of being shown: the second set of control characters, line
// separators, and marks that turn the direction of the text around them.
bool is_unseen(std::string_view character) {
  if (character.size() == 2) return character[0] == '\xC2' && static_cast<unsigned char>(character[1]) < 0xA0;
  if (character.size() != 3 || character[0] != '\xE2') return false;
  const auto last = static_cast<unsigned char>(character[2]);
  if (character[1] == '\x80') return last == 0x8E || last == 0x8F || (last >= 0xA8 && last <= 0xAE);
  return character[1] == '\x81' && last >= 0xA6 && last <= 0xA9;
}

}  // namespace

std::string printable(std::string_view text, std::size_t max_bytes) {
  std::string result;
  std::size_t at = 0;
  while (at < text.size()) {
    if (at >= max_bytes) return result + "...";
    const std::size_t length = utf8_length(text.substr(at));
    const auto byte = static_cast<unsigned char>(text[at]);
    if (length == 0 || byte < 0x20 || byte == 0x7F) {
      result += fmt::format("\\x{:02x}", byte);
      ++at;
    } else if (is_unseen(text.substr(at, length))) {
      for (const char part : text.substr(at, length))
        result += fmt::format("\\x{:02x}", static_cast<unsigned char>(part));
      at += length;
    } else {
      result += text.substr(at, length);
      at += length;
    }
  }
  return result;
}

std::string printable_path(const std::filesystem::path& path) { return printable(path.native(), 1000); }

std::string printable_lines(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    result += printable(line, std::string_view::npos);
    const bool is_ended = line.size() < text.size();
    if (is_ended) result += '\n';
    text.remove_prefix(line.size() + (is_ended ? 1 : 0));
  }
  return result;
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  struct stat status{};
  // Without O_NONBLOCK a named pipe would keep us waiting for a writer.
  const Descriptor descriptor(open_to_read(path, O_NONBLOCK, status));
  SHARDPROOF_CHECK(S_ISREG(status.st_mode), file_error, "'{}' is not a regular file", printable_path(path));
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;
  void* const address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor.value(), 0);
  if (address == MAP_FAILED) {
    fail(ErrorKind::file_error, "cannot map '{}' ({} bytes): {}", printable_path(path), size_, reason(errno));
  }
  data_ = static_cast<const std::byte*>(address);
}

void MappedFile::forget(std::span<const std::byte> bytes) const {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const auto first = (static_cast<std::size_t>(bytes.data() - data_) + page - 1) / page * page;
  const auto last = (static_cast<std::size_t>(bytes.data() - data_) + bytes.size()) / page * page;
  if (first >= last) return;
  ::madvise(const_cast<std::byte*>(data_ + first), last - first, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

namespace {

using Clock = std::chrono::steady_clock;

void wait_for_data(int descriptor, const std::filesystem::path& path, Clock::time_point start, int patience_ms) {
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
  const int left = waited < patience_ms ? patience_ms - static_cast<int>(waited) : 0;
  struct pollfd poll_for{descriptor, POLLIN, 0};
  SHARDPROOF_CHECK(left > 0 && ::poll(&poll_for, 1, left) != 0, file_error,
                   "cannot read '{}': it was not written to its end within {} s", printable_path(path),
                   static_cast<double>(patience_ms) / 1000.0);
}

}  // namespace

std::string read_text_file(const std::filesystem::path& path, std::size_t max_bytes, int patience_ms) {
  struct stat status{};
  // A named pipe that nobody writes to must not keep us waiting for ever.
  const Descriptor descriptor(open_to_read(path, O_NONBLOCK, status));
  const Clock::time_point start = Clock::now();
  std::string text;
  constexpr std::size_t kStep = std::size_t{1} << 16U;
  std::size_t filled = 0;
  while (true) {
    text.resize(filled + kStep);
    const ssize_t count = ::read(descriptor.value(), text.data() + filled, kStep);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {
      wait_for_data(descriptor.value(), path, start, patience_ms);
      continue;
    }
    if (count < 0) fail(ErrorKind::file_error, "cannot read '{}': {}", printable_path(path), reason(errno));
    if (count == 0) break;
    filled += static_cast<std::size_t>(count);
    SHARDPROOF_CHECK(filled <= max_bytes, file_error, "'{}' is larger than {} bytes, the most that is read",
                     printable_path(path), max_bytes);
  }
  text.resize(filled);
  return text;
}

namespace {

// N where the path is /proc/self/fd/N, by whatever name the folder goes.
std::optional<int> named_descriptor(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  int number = -1;
  const auto [end, wrong] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (wrong != std::errc() || end != name.data() + name.size() || number < 0) return std::nullopt;
  std::error_code problem;
  const std::filesystem::path folder = std::filesystem::canonical(folder_of(path), problem);
  if (problem) return std::nullopt;
  for (const char* const own : {"/proc/self/fd", "/proc/thread-self/fd"}) {
    if (folder == std::filesystem::canonical(own, problem) && !problem) return number;
  }
  return std::nullopt;
}

// Follows symbolic links up to the first path that `is_end` holds for.
template <class IsEnd>
std::filesystem::path followed_until(const std::filesystem::path& path, const IsEnd& is_end) {
  constexpr int kMaxLinks = 40;
  std::filesystem::path current = path;
  for (int i = 0; i < kMaxLinks; ++i) {
    std::error_code error;
    if (is_end(current) || !std::filesystem::is_symlink(current, error)) return current;
    const std::filesystem::path next = std::filesystem::read_symlink(current, error);
    if (error) fail(ErrorKind::file_error, "cannot write '{}': {}", printable_path(path), error.message());
    current = next.is_absolute() ? next : current.parent_path() / next;
  }
  fail(ErrorKind::file_error, "cannot write '{}': {}", printable_path(path), reason(ELOOP));
}

}  // namespace

std::filesystem::path followed_links(const std::filesystem::path& path) {
  return followed_until(path, [](const std::filesystem::path&) { return false; });
}

std::optional<int> own_descriptor(const std::filesystem::path& path) {
  return named_descriptor(
      followed_until(path, [](const std::filesystem::path& link) { return named_descriptor(link).has_value(); }));
}

AtomicFile::AtomicFile(const std::filesystem::path& path) : path_(path) {
  SHARDPROOF_CHECK(!path.empty() && path.native().find('\0') == std::string::npos, file_error,
                   "cannot write '{}': not a file name", printable_path(path));
  if (const std::optional<int> descriptor = own_descriptor(path)) {
    share_descriptor(*descriptor);
    return;
  }
  target_ = followed_links(path);
  struct stat status{};
  const bool exists = ::stat(target_.c_str(), &status) == 0;
  SHARDPROOF_CHECK(!exists || !S_ISDIR(status.st_mode), file_error, "cannot write '{}': it is a folder",
                   printable_path(path));
  if (exists && !S_ISREG(status.st_mode)) {
    open_device();
    return;
  }
  if (exists && ::access(target_.c_str(), W_OK) != 0) give_up("cannot write", errno);
  is_replaced_ = true;
  // Without a name until it is complete, where the file system can do that: whatever ends the program, nothing is left.
  descriptor_ = ::open(folder_of(target_).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  if (descriptor_ >= 0) {
    // That its name will be too long is known already.
    std::filesystem::path longest = target_;
    longest += ".tmp-0000000000-0000000000";
    struct stat none{};
    if (::lstat(longest.c_str(), &none) != 0 && errno == ENAMETOOLONG) give_up("cannot create", errno);
  } else {
    const bool is_made = with_new_name([&](const char* name) {
      descriptor_ = ::open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      return descriptor_ >= 0;
    });
    if (!is_made) give_up("cannot create", errno);
  }
  if (exists) (void)::fchmod(descriptor_, status.st_mode & 07777U);
}

// What was opened for this process stays what others write to as well, at one place in it: opening the file behind it
// again, or replacing that, would part their texts.
void AtomicFile::share_descriptor(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags < 0) give_up("cannot write", errno);
  SHARDPROOF_CHECK((flags & O_ACCMODE) != O_RDONLY, file_error, "cannot write '{}': it is open for reading only",
                   printable_path(path_));
  descriptor_ = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (descriptor_ < 0) give_up("cannot write", errno);
}

// A pipe that nobody reads from would be waited for without end.
void AtomicFile::open_device() {
  constexpr int kPatienceMs = 10000, kPauseMs = 10;
  for (int waited = 0;; waited += kPauseMs) {
    descriptor_ = ::open(target_.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    if (descriptor_ >= 0 || errno != ENXIO || waited >= kPatienceMs) break;
    (void)::poll(nullptr, 0, kPauseMs);
  }
  if (descriptor_ < 0 && errno == ENXIO) {
    fail(ErrorKind::file_error, "cannot write '{}': nobody has opened it to read within {} s", printable_path(path_),
         kPatienceMs / 1000);
  }
  if (descriptor_ < 0) give_up("cannot write", errno);
  (void)::fcntl(descriptor_, F_SETFL, ::fcntl(descriptor_, F_GETFL) & ~O_NONBLOCK);
}

template <class Make>
bool AtomicFile::with_new_name(const Make& make) {
  static std::atomic<unsigned> next_number{0};
  for (int attempt = 0; attempt < 100; ++attempt) {
    temporary_ = target_;
    temporary_ += fmt::format(".tmp-{}-{}", ::getpid(), next_number.fetch_add(1));
    if (make(temporary_.c_str())) return true;
    if (errno != EEXIST) break;
  }
  const int error = errno;
  temporary_.clear();
  errno = error;
  return false;
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void AtomicFile::give_up(std::string_view step, int error) {
  discard();
  fail(ErrorKind::file_error, "{} '{}': {}", step, printable_path(path_), reason(error));
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  SHARDPROOF_CHECK(descriptor_ >= 0, internal_error, "'{}' is written to after it was closed", printable_path(path_));
  constexpr std::size_t kMaxWrite = std::size_t{1} << 30U;
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), std::min(bytes.size(), kMaxWrite));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {  // whoever opened the descriptor does not want to wait, but we can
      struct pollfd poll_for{descriptor_, POLLOUT, 0};
      (void)::poll(&poll_for, 1, -1);
      continue;
    }
    if (count < 0) give_up("cannot write", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void AtomicFile::commit() {
  SHARDPROOF_CHECK(descriptor_ >= 0, internal_error, "'{}' is committed after it was closed", printable_path(path_));
  // Devices and pipes have nothing to flush.
  if (is_replaced_ && ::fsync(descriptor_) != 0) give_up("cannot write", errno);
  if (is_replaced_ && temporary_.empty()) {
    const std::string unnamed = fmt::format("/proc/self/fd/{}", descriptor_);
    const bool is_named = with_new_name(
        [&](const char* name) { return ::linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0; });
    if (!is_named) give_up("cannot create", errno);
  }
  if (::close(std::exchange(descriptor_, -1)) != 0) give_up("cannot write", errno);
  if (!is_replaced_) return;
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) give_up("cannot write", errno);
  temporary_.clear();
  synchronize_folder_of(target_);
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace shardproof
