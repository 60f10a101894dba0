#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/file_descriptor.h"

namespace tidemill {

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a named pipe must not wait for its writer.
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) {
    const int reason = errno;
    const bool missing = reason == ENOENT || reason == ENOTDIR;
    return fail(missing ? ErrorCode::kFileNotFound : ErrorCode::kFileRead, "cannot open {}: {}",
                path.string(), std::strerror(reason));
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) {
    return fail(ErrorCode::kFileRead, "cannot read {}: {}", path.string(), std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) {
    return fail(ErrorCode::kFileRead, "cannot read {}: it is {}", path.string(),
                S_ISDIR(info.st_mode) ? "a directory" : "not a regular file");
  }

  MappedFile file;
  file.path_ = path;
  file.size_ = static_cast<size_t>(info.st_size);
  if (file.size_ > 0) {  // mmap refuses a length of 0
    void* data = ::mmap(nullptr, file.size_, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (data == MAP_FAILED) {
      return fail(ErrorCode::kFileRead, "cannot map the {} bytes of {}: {}", file.size_,
                  path.string(), std::strerror(errno));
    }
    file.data_ = static_cast<std::byte*>(data);
  }
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    path_ = std::move(other.path_);
  }
  return *this;
}

MappedFile::~MappedFile() { unmap(); }

void MappedFile::unmap() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

void MappedFile::advise(Access access, uint64_t offset, uint64_t length) const {
  if (offset >= size_) return;
  const uint64_t end = offset + std::min<uint64_t>(length, size_ - offset);
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = offset / page * page;  // madvise wants a page boundary
  const int advice = access == Access::kSequential ? MADV_SEQUENTIAL
                     : access == Access::kRandom   ? MADV_RANDOM
                                                   : MADV_WILLNEED;
  ::madvise(data_ + begin, end - begin, advice);  // only a hint: a refusal changes nothing
}

}  // namespace tidemill
