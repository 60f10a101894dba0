#include "base/huge_memory.h"

#include <sys/mman.h>

namespace tidemill {

std::shared_ptr<std::byte> map_huge_memory(size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  ::madvise(memory, bytes, MADV_HUGEPAGE);  // a request: small pages will do
  return {static_cast<std::byte*>(memory), [bytes](std::byte* p) { ::munmap(p, bytes); }};
}

}  // namespace tidemill
