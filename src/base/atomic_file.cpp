#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace tidemill {
namespace {

namespace fs = std::filesystem;

fs::path directory_of(const fs::path& file) {
  const fs::path parent = file.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

// Hidden, and unique among the threads of this process and among processes.
fs::path temporary_name(const fs::path& target) {
  static std::atomic<unsigned> counter = 0;
  return directory_of(target) /
         fmt::format(".{}.{}.{}.tmp", target.filename().string(), ::getpid(), counter.fetch_add(1));
}

}  // namespace

Result<AtomicFile> AtomicFile::create(const fs::path& target) {
  AtomicFile file;
  std::error_code error;
  file.target_ = fs::weakly_canonical(target, error);
  if (error) file.target_ = target;
  const fs::file_status status = fs::status(file.target_, error);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    return fail(ErrorCode::kFileWrite, "cannot write {}: it is {}", target.string(),
                fs::is_directory(status) ? "a directory" : "not a regular file");
  }
  const fs::path temporary = temporary_name(file.target_);
  file.fd_ =
      FileDescriptor(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file.fd_.valid()) {
    return fail(ErrorCode::kFileWrite, "cannot write {}: {}", target.string(),
                std::strerror(errno));
  }
  file.temporary_ = temporary;
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, fs::path())),
      fd_(std::move(other.fd_)),
      size_(other.size_) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(target_, other.target_);
  std::swap(temporary_, other.temporary_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  return *this;  // `other` now owns, and removes, the temporary that was here
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status AtomicFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      return fail(ErrorCode::kFileWrite, "cannot write {}: {} after {} bytes", target_.string(),
                  n < 0 ? std::strerror(errno) : "nothing was written", offset);
    }
    offset += static_cast<uint64_t>(n);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
  return {};
}

Status AtomicFile::write(std::span<const std::byte> bytes) {
  CHECK_OK(write_at(size_, bytes));
  size_ += bytes.size();
  return {};
}

Status AtomicFile::write(std::string_view text) {
  return write(std::as_bytes(std::span(text.data(), text.size())));
}

Status AtomicFile::overwrite(uint64_t offset, std::span<const std::byte> bytes) {
  if (offset > size_ || bytes.size() > size_ - offset) {
    return fail(ErrorCode::kInternal, "overwrite of {} bytes at {} passes the end {} of {}",
                bytes.size(), offset, size_, target_.string());
  }
  return write_at(offset, bytes);
}

Status AtomicFile::commit() {
  // Without the flush a crash soon after the rename could leave an empty file of the right name.
  const bool flushed = ::fsync(fd_.get()) == 0;
  const int flush_error = errno;
  if (!flushed || !fd_.close()) {
    return fail(ErrorCode::kFileWrite, "cannot write {}: {} after {} bytes", target_.string(),
                std::strerror(flushed ? errno : flush_error), size_);
  }
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    return fail(ErrorCode::kFileWrite, "cannot rename {} to {}: {}", temporary_.string(),
                target_.string(), std::strerror(errno));
  }
  temporary_.clear();
  // The new name reaches the disk with the directory. The data are safe, so a file system that
  // cannot do this is no error.
  const FileDescriptor directory(
      ::open(directory_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.valid()) ::fsync(directory.get());
  return {};
}

Status write_file(const fs::path& target, std::string_view text) {
  TRY(AtomicFile file, AtomicFile::create(target));
  CHECK_OK(file.write(text));
  return file.commit();
}

}  // namespace tidemill
