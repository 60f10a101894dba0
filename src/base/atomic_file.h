// A file that appears whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"
#include "base/result.h"

namespace tidemill {

// Bytes go to a temporary file in the target's directory; commit() flushes it to disk and renames
// it over the target. Without commit() the destructor removes it and the target is as before. Move
// only, not thread safe. Every error is kFileWrite and names the target, the reason and, where
// bytes were written, how many.
class AtomicFile {
 public:
  // Follows symbolic links. A target that exists and is not a regular file is refused: the rename
  // would replace a device or a directory.
  static Result<AtomicFile> create(const std::filesystem::path& target);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  ~AtomicFile();

  // Appends.
  Status write(std::span<const std::byte> bytes);
  Status write(std::string_view text);
  // Overwrites bytes already written (a header whose numbers are known only at the end).
  Status overwrite(uint64_t offset, std::span<const std::byte> bytes);
  // Call once, last.
  Status commit();

  uint64_t size() const { return size_; }

 private:
  AtomicFile() = default;
  Status write_at(uint64_t offset, std::span<const std::byte> bytes);

  std::filesystem::path target_;
  std::filesystem::path temporary_;  // empty: nothing to remove
  FileDescriptor fd_;
  uint64_t size_ = 0;
};

// The whole file in one call.
Status write_file(const std::filesystem::path& target, std::string_view text);

}  // namespace tidemill
