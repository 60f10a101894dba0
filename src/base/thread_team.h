// The threads that run kernels: woken together for a piece of work that they share.
#pragma once

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/numa.h"

namespace tidemill {

// A decode step makes hundreds of short runs, so waking has to be cheap: a waiting thread spins for
// some 100 microseconds before it sleeps. And a run never waits for a thread that has not begun:
// where other programs hold a CPU, the threads that have one do the work. The thread that calls
// run() is rank 0. One thread at a time may use a team; a body must not throw and must not start
// another run of the same team.
class ThreadTeam {
 public:
  static constexpr int kMaxThreads = 1024;
  static constexpr int kPinnedFrom = 8;

  // min(affinity mask, cgroup CPU quota rounded up), at least 1: more threads than this wait for
  // each other instead of working.
  static int available_threads();

  // What nodes() is for a team of so many threads on this machine: one part below kPinnedFrom.
  static NodeShares nodes_for(int threads);

  // `threads` is clamped to 1..kMaxThreads. When the system refuses a thread the team is smaller
  // (size() tells) and a warning is logged. Teams of kPinnedFrom threads on as many allowed CPUs
  // pin their workers, one to each; with fewer or more threads on several memory nodes each worker
  // is bound to the CPUs of its node. The calling thread never is: the CPU that the others leave is
  // on the first node, as its rank. Smaller teams leave it to the system, which knows what else
  // runs there.
  explicit ThreadTeam(int threads) : ThreadTeam(threads, nodes_for(threads)) {}
  // On these nodes, for a test: CPUs that are not there bind nobody.
  ThreadTeam(int threads, NodeShares nodes);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return size_; }
  // Which ranks are on which memory node; by default one part for all.
  const NodeShares& nodes() const { return nodes_; }

  // Calls body(rank, size) on the calling thread, and once on every other thread that comes before
  // the caller's own call has ended. So a body takes its work from something shared, such as an
  // atomic counter, until nothing is left. Returns when all bodies that began have ended; what they
  // wrote is visible to the caller.
  template <typename Body>
  void run(Body&& body) {
    if (size_ == 1) {
      body(0, 1);
      return;
    }
    using Plain = std::remove_reference_t<Body>;
    const auto call = [](const void* object, int rank, int size) {
      (*static_cast<Plain*>(const_cast<void*>(object)))(rank, size);
    };
    run_shared(call, std::addressof(body));
  }

  // Calls body(begin, end) on contiguous parts of [0, n) that do not overlap, are not empty, and
  // begin at multiples of `grain` (>= 1); whoever is free takes the next. The parts depend on n,
  // grain and size() only. A body's result must not depend on the parts: no sums across elements.
  template <typename Body>
  void parallel_for(int64_t n, int64_t grain, Body&& body) {
    assert(grain >= 1);
    if (n <= 0) return;
    const int64_t units = (n - 1) / grain + 1;
    if (units == 1 || size_ == 1) {
      body(int64_t{0}, n);
      return;
    }
    const int64_t parts = std::min<int64_t>(units, int64_t{kPartsPerThread} * size_);
    std::atomic<int64_t> next = 0;
    run([&](int, int) {
      for (int64_t part; (part = next.fetch_add(1, std::memory_order_relaxed)) < parts;) {
        const int64_t begin = part_begin(units, part, parts);
        const int64_t end = part_begin(units, part + 1, parts);
        body(begin * grain, end == units ? n : end * grain);
      }
    });
  }

 private:
  using Call = void (*)(const void* body, int rank, int size);
  // Several, so that nobody waits long for a thread that lost its CPU in a part.
  static constexpr int kPartsPerThread = 3;

  // First unit of a part: the first units % parts parts get one unit more.
  static int64_t part_begin(int64_t units, int64_t part, int64_t parts) {
    return units / parts * part + std::min(part, units % parts);
  }
  void run_shared(Call call, const void* body);
  void work(int rank);
  bool enter(uint32_t& seen);  // false: it came too late
  template <typename Done>
  bool spin_until(const Done& done) const;

  int size_ = 1;
  NodeShares nodes_;
  bool oversubscribed_ = false;
  bool running_ = false;
  // The current run. Written while the gate is closed and nobody is inside.
  Call call_ = nullptr;
  const void* body_ = nullptr;
  // Number of the run, whether it can still be entered, how many workers are inside: kOpen and
  // kInside in thread_team.cpp. Every worker polls it.
  alignas(64) std::atomic<uint32_t> gate_ = 0;
  // Counts runs whose last worker left after the caller: what the caller sleeps on.
  alignas(64) std::atomic<uint32_t> left_ = 0;
  std::atomic<bool> stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace tidemill
