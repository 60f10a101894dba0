#include "base/huge_memory.h"

#include <sys/mman.h>

#include <fstream>
#include <string>

namespace tidemill {

std::shared_ptr<std::byte> map_huge_memory(size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  ::madvise(memory, bytes, MADV_HUGEPAGE);  // a request: small pages will do
  return {static_cast<std::byte*>(memory), [bytes](std::byte* p) { ::munmap(p, bytes); }};
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
