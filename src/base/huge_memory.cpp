#include "base/huge_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "base/file_descriptor.h"

namespace tidemill {

std::shared_ptr<std::byte> map_huge_memory(size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  ::madvise(memory, bytes, MADV_HUGEPAGE);  // a request: small pages will do
  return {static_cast<std::byte*>(memory), [bytes](std::byte* p) { ::munmap(p, bytes); }};
}

std::shared_ptr<std::byte> map_repeated_memory(size_t bytes, size_t period) {
  const FileDescriptor file(::memfd_create("repeated", MFD_CLOEXEC));
  if (!file.valid() || ::ftruncate(file.get(), static_cast<off_t>(period)) != 0) return nullptr;
  // All addresses at once, so that nobody else gets one between two repetitions.
  void* reserved =
      ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  const std::shared_ptr<std::byte> memory(static_cast<std::byte*>(reserved),
                                          [bytes](std::byte* p) { ::munmap(p, bytes); });
  for (size_t at = 0; at < bytes; at += period) {
    void* part = ::mmap(memory.get() + at, std::min(period, bytes - at), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED, file.get(), 0);
    if (part == MAP_FAILED) return nullptr;
  }
  return memory;
}

bool huge_pages_offered(const std::filesystem::path& root) {
  // "always [madvise] never": the mode in force is in brackets.
  std::ifstream file(root / "sys/kernel/mm/transparent_hugepage/enabled");
  std::string modes;
  std::getline(file, modes);
  return modes.find("[always]") != std::string::npos ||
         modes.find("[madvise]") != std::string::npos;
}

}  // namespace tidemill
