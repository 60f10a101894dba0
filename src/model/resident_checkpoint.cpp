#include "model/resident_checkpoint.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/available_memory.h"
#include "base/file_descriptor.h"
#include "base/huge_memory.h"
#include "base/thread_team.h"
#include "model/page_parts.h"

namespace tidemill {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kBlockBytes = size_t{4} << 20;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct Piece {         // of a tensor
  int64_t offset = 0;  // in the file
  std::span<std::byte> to;
};
struct Block {  // neighbours in a file
  size_t file = 0;
  std::vector<Piece> pieces = {};
  size_t bytes = 0;
};

// Tensors go from files to memory in the order of the files, on each part of the nodes by threads
// that run there.
class Reading {
 public:
  Reading(const Checkpoint& checkpoint, const NodeShares& nodes)
      : files_(checkpoint.files()), nodes_(nodes), queues_(nodes.parts().size()) {}

  Status open_files() {
    for (const MappedFile& file : files_) {
      fds_.emplace_back(::open(file.path().c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
      if (!fds_.back().valid()) {
        return fail(ErrorCode::kFileRead, "cannot open {}: {}", file.path().string(),
                    std::strerror(errno));
      }
    }
    return {};
  }

  void add(std::span<const std::byte> from, std::byte* to, const PageParts& pages) {
    const size_t file = file_of(from.data());
    const auto offset = from.data() - files_[file].bytes().data();
    for (size_t done = 0; done < from.size();) {
      std::vector<Block>& blocks = queues_[pages.part_of(to + done)].blocks;
      if (blocks.empty() || blocks.back().file != file || blocks.back().bytes >= kBlockBytes) {
        blocks.push_back({.file = file});
      }
      Block& block = blocks.back();
      size_t bytes = std::min(from.size() - done, kBlockBytes - block.bytes);
      if (queues_.size() > 1) bytes = std::min(bytes, PageParts::bytes_to_page_end(to + done));
      block.pieces.push_back({offset + static_cast<int64_t>(done), {to + done, bytes}});
      block.bytes += bytes;
      done += bytes;
    }
    bytes_ += from.size();
  }

  Status run(int threads, const std::function<void(double)>& progress) {
    if (progress) progress(0);
    std::vector<std::thread> others;
    for (size_t part = 0; part < queues_.size(); ++part) {
      const int64_t share = nodes_.begin(threads, part + 1) - nodes_.begin(threads, part);
      for (int64_t i = part == 0 ? 1 : 0; i < std::max(share, int64_t{1}); ++i) {
        others.emplace_back([this, part] { read_blocks(part, {}); });
      }
    }
    read_blocks(0, progress);
    for (std::thread& other : others) other.join();
    if (error_) return tl::unexpected(*error_);
    if (progress) progress(1);
    return {};
  }

 private:
  size_t file_of(const std::byte* data) {
    const auto holds = [&](const MappedFile& file) {
      return data >= file.bytes().data() && data < file.bytes().data() + file.bytes().size();
    };
    while (!holds(files_[file_])) file_ = (file_ + 1) % files_.size();
    return file_;
  }

  void read_blocks(size_t part, const std::function<void(double)>& progress) {
    const RunOn near(nodes_.parts()[part].cpus);
    Queue& queue = queues_[part];
    for (size_t i = queue.next++; i < queue.blocks.size(); i = queue.next++) {
      if (Status status = read(queue.blocks[i]); !status) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::move(status).error();
        for (Queue& other : queues_) other.next = other.blocks.size();  // nobody need go on
        return;
      }
      done_ += queue.blocks[i].bytes;
      if (progress) progress(static_cast<double>(done_) / static_cast<double>(bytes_));
    }
  }

  Status read(const Block& block) const {
    for (const Piece& piece : block.pieces) CHECK_OK(read(block.file, piece));
    return {};
  }

  Status read(size_t file, Piece piece) const {
    while (!piece.to.empty()) {
      const ssize_t n = ::pread(fds_[file].get(), piece.to.data(), piece.to.size(), piece.offset);
      if (n < 0 && errno == EINTR) continue;
      const auto& path = files_[file].path();
      if (n < 0) {
        return fail(ErrorCode::kFileRead, "cannot read {} at byte {}: {}", path.string(),
                    piece.offset, std::strerror(errno));
      }
      if (n == 0) {
        return fail(ErrorCode::kFileRead,
                    "{} ends at byte {} and had {} when it was opened: it was changed meanwhile; "
                    "load it when it is complete",
                    path.string(), piece.offset, files_[file].bytes().size());
      }
      piece.to = piece.to.subspan(static_cast<size_t>(n));
      piece.offset += n;
    }
    return {};
  }

  const std::vector<MappedFile>& files_;
  std::vector<FileDescriptor> fds_;  // of files_
  size_t file_ = 0;                  // of the last tensor
  const NodeShares& nodes_;
  struct Queue {
    std::vector<Block> blocks = {};
    std::atomic<size_t> next = 0;
  };
  std::vector<Queue> queues_;  // one for each part of nodes_
  size_t bytes_ = 0;

  std::atomic<size_t> done_ = 0;
  std::mutex mutex_;
  std::optional<Error> error_;  // the first
};

}  // namespace

Result<HugePages> parse_huge_pages(std::string_view text) {
  if (text == "auto") return HugePages::kAuto;
  if (text == "on") return HugePages::kOn;
  if (text == "off") return HugePages::kOff;
  return fail(ErrorCode::kInvalidArgument, "huge_pages cannot be \"{:.40}\"; one of auto, on, off",
              text);
}

std::string_view why_mapped(bool gains, int64_t weights, int64_t available, int64_t limit) {
  constexpr int64_t kLeast = int64_t{256} << 20;  // below, a quick start counts more
  if (!gains) return "the system's transparent huge pages are off";
  if (weights < kLeast) return "below 256 MiB they would gain little";
  if (weights > available / 2) return "more than half of the memory that is available";
  if (weights > limit / 2) return "more than half of what the control group's limit leaves";
  return {};
}

std::string_view why_mapped(int64_t weights, const NodeShares& nodes) {
  const bool gains = huge_pages_offered() || nodes.parts().size() > 1;
  return why_mapped(gains, weights, available_memory(), cgroup_memory_left());
}

Result<Checkpoint> resident_checkpoint(const Checkpoint& mapped,
                                       const std::function<void(double)>& progress,
                                       const NodeShares& nodes) {
  using Named = ByName<TensorView>::value_type;
  std::vector<const Named*> tensors;
  size_t total = 0;
  for (const Named& tensor : mapped.tensors()) {
    tensors.push_back(&tensor);
    total += aligned(tensor.second.data.size());
  }
  std::sort(tensors.begin(), tensors.end(), [](const Named* a, const Named* b) {
    return a->second.data.data() < b->second.data.data();
  });

  Reading reading(mapped, nodes);
  CHECK_OK(reading.open_files());
  const std::shared_ptr<std::byte> memory = map_huge_memory(std::max(total, kAlignment));
  if (memory == nullptr) {
    return fail(ErrorCode::kOutOfMemory, "no {} bytes of memory for the weights; map their files",
                total);
  }
  ByName<TensorView> views;
  PageParts pages({memory.get(), total}, nodes);
  std::byte* to = memory.get();
  for (const Named* tensor : tensors) {
    const size_t bytes = tensor->second.data.size();
    views[tensor->first] = {tensor->second.type, tensor->second.shape, {to, bytes}};
    pages.add({to, bytes});
    to += aligned(bytes);
  }
  to = memory.get();
  for (const Named* tensor : tensors) {
    const auto data = tensor->second.data;
    if (!data.empty()) reading.add(data, to, pages);
    to += aligned(data.size());
  }
  // As many as a fast disk wants at least, and no more than memory can follow.
  CHECK_OK(reading.run(std::clamp(ThreadTeam::available_threads(), 4, 16), progress));
  return Checkpoint::in_memory(std::move(views), memory, static_cast<int64_t>(total));
}

std::string how_held(const Checkpoint& checkpoint) {
  const auto mib = static_cast<double>(checkpoint.file_bytes()) / 0x1p20;
  const std::string_view where = !checkpoint.files().empty() ? "mapped"
                                 : huge_pages_offered()      ? "in huge pages"
                                                             : "in memory, in small pages";
  return mib < 1024 ? fmt::format("{:.1f} MiB {}", mib, where)
                    : fmt::format("{:.1f} GiB {}", mib / 1024, where);
}

}  // namespace tidemill
