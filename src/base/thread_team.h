// The threads that run kernels: a fixed team that is woken together and finishes together.
#pragma once

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace tidemill {

// A decode step makes hundreds of short runs, so waking has to be cheap: a waiting thread spins for
// some 100 microseconds before it sleeps. The thread that calls run() is rank 0. One thread at
// a time may use a team; a body must not throw and must not start another run of the same team.
class ThreadTeam {
 public:
  static constexpr int kMaxThreads = 1024;

  // min(affinity mask, cgroup CPU quota rounded up), at least 1: more threads than this wait for
  // each other instead of working.
  static int available_threads();

  // `threads` is clamped to 1..kMaxThreads. When the system refuses a thread the team is smaller
  // (size() tells) and a warning is logged. Workers are pinned, one to each allowed CPU, when the
  // team has exactly as many threads as there are allowed CPUs; the calling thread never is.
  explicit ThreadTeam(int threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int size() const { return size_; }

  // Calls body(rank, size) once on every thread, ranks 0..size-1; returns when all have returned.
  // What a body wrote is visible to the caller afterwards.
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
    run_on_all(call, std::addressof(body));
  }

  // Calls body(begin, end) on contiguous parts of [0, n) that do not overlap, are not empty, and
  // begin at multiples of `grain` (>= 1). The parts depend on n, grain and size() only. A body's
  // result must not depend on the parts: no sums across elements.
  template <typename Body>
  void parallel_for(int64_t n, int64_t grain, Body&& body) {
    assert(grain >= 1);
    if (n <= 0) return;
    const int64_t units = (n - 1) / grain + 1;
    if (units == 1 || size_ == 1) {
      body(int64_t{0}, n);
      return;
    }
    run([&](int rank, int size) {
      const int64_t begin = part_begin(units, rank, size);
      const int64_t end = part_begin(units, rank + 1, size);
      if (begin < end) body(begin * grain, end == units ? n : end * grain);
    });
  }

 private:
  using Call = void (*)(const void* body, int rank, int size);

  // First unit of a rank: the first units % size ranks get one unit more.
  static int64_t part_begin(int64_t units, int rank, int size) {
    return units / size * rank + std::min<int64_t>(rank, units % size);
  }
  void run_on_all(Call call, const void* body);
  void work(int rank);
  bool spin_while(const std::atomic<uint32_t>& value, uint32_t old) const;

  int size_ = 1;
  bool oversubscribed_ = false;
  // The current run, published by the change of generation_; no call means stop.
  Call call_ = nullptr;
  const void* body_ = nullptr;
  bool running_ = false;
  // On lines of their own: every worker polls the first, every worker writes the second.
  alignas(64) std::atomic<uint32_t> generation_ = 0;
  alignas(64) std::atomic<uint32_t> unfinished_ = 0;
  std::vector<std::thread> workers_;
};

}  // namespace tidemill
