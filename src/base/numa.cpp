#include "base/numa.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <numeric>
#include <sstream>
#include <utility>

#include "base/cpu_quota.h"

namespace tidemill {
namespace {

namespace fs = std::filesystem;

struct Range {
  int first = 0, last = 0;
};

// "0-3,8-11"; what is no range ends it. Not written out: it may be from 0 to anything.
std::vector<Range> ranges_in(const fs::path& path) {
  std::ifstream file(path);
  std::vector<Range> ranges;
  Range range;
  while (file >> range.first) {
    range.last = range.first;
    if (file.peek() == '-') {
      file.get();
      if (!(file >> range.last)) break;
    }
    ranges.push_back(range);
    if (file.get() != ',') break;
  }
  return ranges;
}

bool holds(const std::vector<Range>& ranges, int number) {
  return std::ranges::any_of(ranges,
                             [&](const Range& r) { return r.first <= number && number <= r.last; });
}

}  // namespace

std::vector<NumaNode> numa_nodes(std::span<const int> cpus, const fs::path& root) {
  constexpr int kMostNodes = 1024;  // of any kernel's configuration
  const fs::path directory = root / "sys/devices/system/node";
  std::vector<NumaNode> nodes;
  size_t found = 0;
  for (const Range& range : ranges_in(directory / "online")) {
    for (int id = std::max(range.first, 0); id <= std::min(range.last, kMostNodes); ++id) {
      NumaNode node{.id = id, .cpus = {}};
      const auto own = ranges_in(directory / fmt::format("node{}", id) / "cpulist");
      std::ranges::copy_if(cpus, std::back_inserter(node.cpus),
                           [&](int cpu) { return holds(own, cpu); });
      found += node.cpus.size();
      if (!node.cpus.empty()) nodes.push_back(std::move(node));
    }
  }
  return found == cpus.size() ? nodes : std::vector<NumaNode>{};
}

NodeShares::NodeShares(int threads, std::vector<NumaNode> nodes) : threads_(std::max(threads, 1)) {
  if (nodes.size() < 2) return;
  const auto cpus = std::accumulate(
      nodes.begin(), nodes.end(), int64_t{0},
      [](int64_t n, const NumaNode& node) { return n + static_cast<int64_t>(node.cpus.size()); });
  std::vector<Part> parts;
  int64_t before = 0;
  for (NumaNode& node : nodes) {
    const int64_t first = threads_ * before / cpus;
    before += static_cast<int64_t>(node.cpus.size());
    if (threads_ * before / cpus == first) continue;
    parts.push_back(
        {.node = node.id, .cpus = std::move(node.cpus), .first_rank = static_cast<int>(first)});
  }
  if (parts.size() < 2) return;
  one_each_ = cpus == threads_;
  parts_ = std::move(parts);
}

size_t NodeShares::part_of(int rank) const {
  size_t part = parts_.size() - 1;
  while (part > 0 && rank < parts_[part].first_rank) --part;
  return part;
}

int64_t NodeShares::begin(int64_t n, size_t part) const {
  if (part == 0) return 0;
  if (part >= parts_.size()) return n;
  const int64_t first = parts_[part].first_rank;  // without overflow for any n
  return n / threads_ * first + n % threads_ * first / threads_;
}

std::vector<int> NodeShares::cpus_of(int rank) const {
  const Part& part = parts_[part_of(rank)];
  if (!one_each_) return part.cpus;
  return {part.cpus[static_cast<size_t>(rank - part.first_rank)]};
}

std::string NodeShares::describe() const {
  if (parts_.size() == 1) return "one memory node";
  std::string text = fmt::format("{} memory nodes", parts_.size());
  for (size_t i = 0; i < parts_.size(); ++i) {
    const int last = (i + 1 < parts_.size() ? parts_[i + 1].first_rank : threads_) - 1;
    text += fmt::format("{}{} to {} on node {}", i == 0 ? ": threads " : ", ", parts_[i].first_rank,
                        last, parts_[i].node);
  }
  return text;
}

bool bind_thread(std::span<const int> cpus) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const int cpu : cpus) {
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &mask);
  }
  return ::pthread_setaffinity_np(::pthread_self(), sizeof(mask), &mask) == 0;
}

RunOn::RunOn(std::span<const int> cpus) {
  if (cpus.empty()) return;
  std::vector<int> before = allowed_cpus();
  if (bind_thread(cpus)) before_ = std::move(before);
}

RunOn::~RunOn() {
  if (!before_.empty()) bind_thread(before_);
}

bool interleave(std::byte* memory, size_t bytes, const NodeShares& shares) {
  if (shares.parts().size() < 2) return false;
#if defined(SYS_mbind)
  constexpr int kInterleave = 3;  // MPOL_INTERLEAVE of linux/mempolicy.h
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  unsigned long mask[1025 / kBits + 1] = {};
  for (const NodeShares::Part& part : shares.parts()) {
    const auto node = static_cast<size_t>(part.node);
    if (part.node < 0 || node / kBits >= std::size(mask)) return false;
    mask[node / kBits] |= 1ul << node % kBits;
  }
  // Only whole pages can be bound.
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t skipped = (page - reinterpret_cast<uintptr_t>(memory) % page) % page;
  if (bytes < skipped + page) return false;
  // The kernel counts one bit less than it is told.
  return ::syscall(SYS_mbind, memory + skipped, (bytes - skipped) / page * page, kInterleave, mask,
                   8 * sizeof(mask) + 1, 0) == 0;
#else
  return false;
#endif
}

}  // namespace tidemill
