// A whole file as read-only memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "base/result.h"

namespace tidemill {

// Move only; the bytes stay at their address when the object moves, and are gone with it. Const
// members may be called from any thread. The file must not shrink while it is mapped: the kernel
// answers a read past its new end with SIGBUS.
class MappedFile {
 public:
  // Errors: kFileNotFound, kFileRead (with the path and the system's reason). A directory or a
  // device is refused; an empty file gives empty bytes.
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

  // A hint to the kernel about [offset, offset + length), which is clipped to the file.
  enum class Access {
    kSequential,  // read ahead far, drop behind
    kRandom,      // read no more than asked
    kWillNeed,    // start reading now
  };
  void advise(Access access, uint64_t offset = 0, uint64_t length = UINT64_MAX) const;

 private:
  MappedFile() = default;
  void unmap();

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::filesystem::path path_;
};

}  // namespace tidemill
