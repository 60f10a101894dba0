// Memory nodes (NUMA): which CPUs are near which memory, and what a team of threads makes of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace tidemill {

struct NumaNode {
  int id = 0;             // the system's number
  std::vector<int> cpus;  // ascending
};

// The nodes that CPUs belong to, by number, each with those of `cpus` that are its own. Nodes
// without any of them (memory only, offline, not this process's) are left out; one whose CPUs have
// no memory of their own is not: the kernel gives its threads the nearest. Empty: not every CPU's
// node is known. `root` is the directory that holds sys/: a test passes its own.
std::vector<NumaNode> numa_nodes(std::span<const int> cpus,
                                 const std::filesystem::path& root = "/");

// How a team's threads are divided between nodes, and with them the rows of every matrix: nodes in
// the order of their numbers, threads in proportion to CPUs, ranks and rows without a gap. So
// whoever copies weights knows which threads will read what. One part without a node where there
// is nothing to divide.
class NodeShares {
 public:
  struct Part {
    int node = -1;
    std::vector<int> cpus;  // none: any
    int first_rank = 0;
  };

  NodeShares() = default;
  // One part for fewer than two nodes. A node that would get no thread gets no part.
  NodeShares(int threads, std::vector<NumaNode> nodes);

  std::span<const Part> parts() const { return parts_; }
  size_t part_of(int rank) const;
  // First of `n` units in order (rows, bytes) that belong to a part; begin(n, parts().size()) == n.
  int64_t begin(int64_t n, size_t part) const;
  // The CPUs a rank should run on; empty: any. One CPU each if there are as many threads as CPUs,
  // otherwise those of its node.
  std::vector<int> cpus_of(int rank) const;
  // "one memory node", "2 memory nodes: threads 0 to 7 on node 0, 8 to 15 on node 1".
  std::string describe() const;

 private:
  std::vector<Part> parts_{Part{}};
  int threads_ = 1;
  bool one_each_ = false;
};

// While it lives, the thread that made it runs on these CPUs only, and pages that it is the first
// to touch come from their node; afterwards where it ran before. Of CPUs that the system refuses,
// or none, nothing comes.
class RunOn {
 public:
  explicit RunOn(std::span<const int> cpus);
  ~RunOn();
  RunOn(const RunOn&) = delete;
  RunOn& operator=(const RunOn&) = delete;

 private:
  std::vector<int> before_;  // empty: nothing was changed
};

// The calling thread stays on these CPUs, of which some have to be there; false when the system
// refuses.
bool bind_thread(std::span<const int> cpus);

// Pages of [memory, memory + bytes) that are not touched yet will come from the parts' nodes in
// turn: for what all threads read. False, and nothing has changed, with one part and where the
// system refuses (containers often do).
bool interleave(std::byte* memory, size_t bytes, const NodeShares& shares);

}  // namespace tidemill
