// Files as the library reads and writes them: whole small text files, read-only memory maps of large ones, and writes
// that either replace the target completely or leave it as it was. Every failure is one file_error that names the path
// and the reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace shardproof {

// `text` as it may stand in a message: control characters, marks that turn the direction of text and invalid UTF-8
// escaped as \xNN, and cut after about `max_bytes` bytes with "..." at the cut.
std::string printable(std::string_view text, std::size_t max_bytes = 200);
// The same of a path, which may be longer.
std::string printable_path(const std::filesystem::path& path);
// The same for a text of several lines: line ends stay, and nothing is cut.
std::string printable_lines(std::string_view text);

// The bytes of a regular file, mapped read only for the life of the object. Throws file_error for a path that is
// missing, a folder, not a regular file, or not readable. An empty file is an empty span. Another process that shortens
// the file while it is mapped makes later reads fatal, as with every memory map.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Gives the memory that holds these bytes back to the system; they are read again when they are next used.
  void forget(std::span<const std::byte> bytes) const;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// The whole file. Throws file_error for what cannot be opened or read, for a folder, for more than `max_bytes`, and for
// a pipe that was not written to its end after so long: its writer may need a moment, or may never end.
std::string read_text_file(const std::filesystem::path& path, std::size_t max_bytes = std::size_t{64} << 20U,
                           int patience_ms = 10'000);

// The path behind a chain of symbolic links; the last one need not exist. file_error for a chain without end.
std::filesystem::path followed_links(const std::filesystem::path& path);
// The descriptor of this process that the path names, itself or by links: 1 for /dev/stdout, N for /dev/fd/N and
// /proc/self/fd/N. It need not be open.
std::optional<int> own_descriptor(const std::filesystem::path& path);

// A file being written under a temporary name beside its target. `commit` flushes it to the disk and renames it; an
// object destroyed before that removes it, and the target keeps what it had. A symbolic link is followed, so the link
// stays. A target that is no regular file (a device, a pipe), or a descriptor of this process (/dev/stdout, /dev/fd/3),
// whatever stands behind it, is a stream: written to directly, from where it is. All functions throw file_error.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }
  void commit();
  bool is_stream() const { return !is_replaced_; }

 private:
  void share_descriptor(int descriptor);
  void open_device();
  // Calls make(name) with names beside the target until one is not taken; keeps that name.
  template <class Make>
  bool with_new_name(const Make& make);
  [[noreturn]] void give_up(std::string_view step, int error);
  void discard() noexcept;

  std::filesystem::path path_;       // as given, for messages
  std::filesystem::path target_;     // with symbolic links followed
  std::filesystem::path temporary_;  // empty while it has no name
  bool is_replaced_ = false;         // else it is a stream
  int descriptor_ = -1;
};

// Replaces or creates the file with these contents.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace shardproof
