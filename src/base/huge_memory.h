// Large memory that is filled as it is used, in huge pages where the system gives them.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>

namespace tidemill {

// Zero bytes, aligned to a page; null when the system refuses. Pages come with their first use, so
// asking for more than there is may succeed here.
std::shared_ptr<std::byte> map_huge_memory(size_t bytes);

// Addresses for `bytes` bytes behind which the same `period` bytes of memory, a multiple of the
// page size, follow each other again and again: what is written to one shows in all. Zero bytes;
// null when the system refuses.
std::shared_ptr<std::byte> map_repeated_memory(size_t bytes, size_t period);

// Does the system give huge pages to memory that asks for them? `root` is the directory that holds
// sys/: a test passes its own.
bool huge_pages_offered(const std::filesystem::path& root = "/");

}  // namespace tidemill
