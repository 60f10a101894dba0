#include "base/thread_team.h"

#include <sched.h>

#include <chrono>
#include <cmath>
#include <system_error>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "base/clock.h"
#include "base/cpu_quota.h"
#include "base/log.h"

namespace tidemill {
namespace {

// Waking a sleeper costs some 70 us (measured in a virtual machine), so spinning about twice as
// long before sleeping is never far from the best choice, and longer than most gaps between two
// kernels.
constexpr std::chrono::microseconds kSpinTime{150};
// From here on a spinning thread offers its CPU to others at every look at the clock: with none
// waiting that costs nothing, and otherwise the one it waits for may be among them.
constexpr std::chrono::microseconds kPoliteAfter{20};
constexpr int kPausesPerLook = 32;  // about a microsecond

// ThreadTeam::gate_: bits 0..10 workers inside, bit 11 open, the rest the number of the run. That
// may come round: a worker that slept through a million runs misses one more.
constexpr uint32_t kInside = (1u << 11) - 1;
constexpr uint32_t kOpen = 1u << 11;
constexpr uint32_t kNumber = 1u << 12;
static_assert(ThreadTeam::kMaxThreads <= kInside);

uint32_t number_of(uint32_t gate) { return gate / kNumber; }

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

int ThreadTeam::available_threads() {
  const auto cpus = static_cast<double>(allowed_cpus().size());
  const double quota = std::ceil(cgroup_cpu_quota());
  return static_cast<int>(std::max(1.0, std::min(cpus, quota)));
}

NodeShares ThreadTeam::nodes_for(int threads) {
  if (threads < kPinnedFrom) return {};
  return NodeShares(std::min(threads, kMaxThreads), numa_nodes(allowed_cpus()));
}

ThreadTeam::ThreadTeam(int threads, NodeShares nodes) : nodes_(std::move(nodes)) {
  threads = std::clamp(threads, 1, kMaxThreads);
  const std::vector<int> all = allowed_cpus();
  const bool one_each = threads >= kPinnedFrom && static_cast<size_t>(threads) == all.size();
  oversubscribed_ = threads > available_threads();
  for (int rank = 1; rank < threads; ++rank) {
    std::vector<int> cpus = nodes_.cpus_of(rank);
    if (cpus.empty() && one_each) cpus = {all[static_cast<size_t>(rank)]};
    try {
      workers_.emplace_back([this, rank, cpus = std::move(cpus)] {
        if (!cpus.empty() && !bind_thread(cpus)) {
          log_debug("cannot bind kernel thread {} to CPU {}", rank, cpus.front());
        }
        work(rank);
      });
    } catch (const std::system_error& error) {
      log_warning("only {} of {} kernel threads could be started: {}", rank, threads, error.what());
      break;
    }
  }
  size_ = static_cast<int>(workers_.size()) + 1;
}

ThreadTeam::~ThreadTeam() {
  stopping_.store(true);
  gate_.store((number_of(gate_.load()) + 1) * kNumber);
  gate_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::run_shared(Call call, const void* body) {
  assert(!running_ && "a body must not start another run of its team");
  running_ = true;
  call_ = call;
  body_ = body;
  // Sequentially consistent, as is the sleepers' count inside wait(): either the notification sees
  // the sleeper or the sleeper sees the new run.
  gate_.store((number_of(gate_.load(std::memory_order_relaxed)) + 1) * kNumber | kOpen);
  gate_.notify_all();

  call(body, 0, size_);

  // Nobody may enter any more; who is inside, still uses the body.
  if ((gate_.fetch_and(~kOpen) & kInside) != 0) {
    const auto empty = [&] { return (gate_.load(std::memory_order_acquire) & kInside) == 0; };
    while (!empty()) {
      const uint32_t left = left_.load();
      if (!spin_until(empty) && !empty()) left_.wait(left);
    }
  }
  running_ = false;
}

// Waits for a run that this worker has not seen, or for the end.
bool ThreadTeam::enter(uint32_t& seen) {
  const auto changed = [&] {
    return number_of(gate_.load(std::memory_order_acquire)) != seen || stopping_.load();
  };
  while (!changed()) {
    const uint32_t gate = gate_.load();
    if (!spin_until(changed) && number_of(gate) == seen) gate_.wait(gate);
  }
  uint32_t gate = gate_.load(std::memory_order_acquire);
  seen = number_of(gate);
  while ((gate & kOpen) != 0 && number_of(gate) == seen) {
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel)) return true;
  }
  return false;
}

void ThreadTeam::work(int rank) {
  for (uint32_t seen = 0; !stopping_.load();) {
    if (!enter(seen)) continue;
    call_(body_, rank, size_);
    const uint32_t before = gate_.fetch_sub(1);
    if ((before & (kOpen | kInside)) == 1) {  // the last one, and the caller waits
      left_.fetch_add(1);
      left_.notify_one();
    }
  }
}

// True as soon as it is done, false when it is time to sleep.
template <typename Done>
bool ThreadTeam::spin_until(const Done& done) const {
  const Clock::time_point start = Clock::now();
  for (;;) {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (done()) return true;
      pause();
    }
    const Clock::duration waited = Clock::now() - start;
    if (waited > kSpinTime) return done();
    if (oversubscribed_ || waited > kPoliteAfter) ::sched_yield();
  }
}

}  // namespace tidemill
