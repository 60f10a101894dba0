// Weights read into huge pages, instead of used from their mapped files.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/numa.h"
#include "base/result.h"
#include "model/safetensors.h"

namespace tidemill {

enum class HugePages { kOff, kAuto, kOn };

// "auto", "on" or "off". Errors: kInvalidArgument.
Result<HugePages> parse_huge_pages(std::string_view text);

// Why kAuto leaves weights in their mapped files; empty: it reads them into memory of their own.
// `gains`: there are huge pages or several memory nodes; `available`: memory of the machine;
// `limit`: what control groups leave of it. All in bytes.
std::string_view why_mapped(bool gains, int64_t weights, int64_t available, int64_t limit);
// On this machine, now; for a team on these nodes.
std::string_view why_mapped(int64_t weights, const NodeShares& nodes = {});

// The same tensors, each at a multiple of 64 bytes, in memory that asks for huge pages; the mapping
// is not needed afterwards. Files are read once, by several threads. What the kernel keeps of them
// in its file cache makes the next start quick and yields to whoever needs memory. `progress` is
// called from this thread with a fraction in 0..1. Errors: kOutOfMemory; kFileRead with the file
// and the place, also when a file has become shorter since it was mapped.
// On several nodes each part of a tensor's bytes (NodeShares::begin) is first touched by a thread
// on the part's node, and so lies in the memory there; 2 MiB at once, and what two parts share goes
// to the one with the middle of it. The kernel gives other memory where that is full.
Result<Checkpoint> resident_checkpoint(const Checkpoint& mapped,
                                       const std::function<void(double)>& progress = {},
                                       const NodeShares& nodes = {});

// "7.9 GiB in huge pages", "322.3 MiB mapped".
std::string how_held(const Checkpoint& checkpoint);

}  // namespace tidemill
