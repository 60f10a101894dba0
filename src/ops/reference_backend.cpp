#include "ops/reference_backend.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/formats.h"

namespace tidemill {

Result<Rounding> Rounding::parse(std::string_view name) {
  if (name == "released") return Rounding{};
  if (name == "no-bf16") return Rounding{.bf16 = false};
  if (name == "cache-only") return Rounding{.bf16 = false, .activations = false};
  if (name == "none") return Rounding{.bf16 = false, .activations = false, .cache = false};
  return fail(ErrorCode::kInvalidArgument,
              "rounding '{}' is not one of released, no-bf16, cache-only, none", name);
}

float reference::Context::bf16(float value) const {
  return rounding.bf16 ? round_bf16(value) : value;
}

// Zeroed pages that the system hands out as they are touched: a pool for a million tokens costs
// what is used of it.
Result<Backend::Buffer> ReferenceBackend::allocate(int64_t bytes) {
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return fail(ErrorCode::kOutOfMemory, "cannot allocate {} bytes; lower the number of tokens",
                bytes);
  }
  // Every thread reads all of what is kept here, so it comes from all nodes in turn.
  interleave(static_cast<std::byte*>(memory), size, context_.team.nodes());
  return Buffer(static_cast<std::byte*>(memory), [size](std::byte* p) { munmap(p, size); });
}

void ReferenceBackend::copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

Status ReferenceBackend::stage(std::span<const StagedArray> arrays) {
  for (const StagedArray& array : arrays) *array.device = array.data;
  return {};
}

int64_t ReferenceBackend::free_memory() const {
  return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE) / 2;
}

std::unique_ptr<Backend> make_reference_backend(ThreadTeam& team, Rounding rounding,
                                                ProductOrder order) {
  return std::make_unique<ReferenceBackend>(team, rounding, order);
}

}  // namespace tidemill
