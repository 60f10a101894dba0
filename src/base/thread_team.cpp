#include "base/thread_team.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <cmath>
#include <system_error>

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

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void pin_to(int cpu) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(cpu, &mask);
  if (::pthread_setaffinity_np(::pthread_self(), sizeof(mask), &mask) != 0) {
    log_debug("cannot pin a kernel thread to CPU {}", cpu);
  }
}

}  // namespace

int ThreadTeam::available_threads() {
  const auto cpus = static_cast<double>(allowed_cpus().size());
  const double quota = std::ceil(cgroup_cpu_quota());
  return static_cast<int>(std::max(1.0, std::min(cpus, quota)));
}

ThreadTeam::ThreadTeam(int threads) {
  threads = std::clamp(threads, 1, kMaxThreads);
  const std::vector<int> cpus = allowed_cpus();
  const bool pinned = threads > 1 && static_cast<size_t>(threads) == cpus.size();
  oversubscribed_ = threads > available_threads();
  for (int rank = 1; rank < threads; ++rank) {
    try {
      workers_.emplace_back([this, rank, cpu = pinned ? cpus[rank] : -1] {
        if (cpu >= 0) pin_to(cpu);
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
  call_ = nullptr;
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::run_on_all(Call call, const void* body) {
  assert(!running_ && "a body must not start another run of its team");
  running_ = true;
  call_ = call;
  body_ = body;
  unfinished_.store(static_cast<uint32_t>(size_ - 1), std::memory_order_relaxed);
  // Sequentially consistent, as is the sleepers' count inside wait(): either the notification sees
  // the sleeper or the sleeper sees the new generation.
  generation_.fetch_add(1);
  generation_.notify_all();

  call(body, 0, size_);

  for (uint32_t left; (left = unfinished_.load(std::memory_order_acquire)) != 0;) {
    if (!spin_while(unfinished_, left)) unfinished_.wait(left, std::memory_order_acquire);
  }
  running_ = false;
}

void ThreadTeam::work(int rank) {
  for (uint32_t seen = 0;; ++seen) {
    while (generation_.load(std::memory_order_acquire) == seen) {
      if (!spin_while(generation_, seen)) generation_.wait(seen, std::memory_order_acquire);
    }
    if (call_ == nullptr) return;
    call_(body_, rank, size_);
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
  }
}

// True as soon as the value has changed, false when it is time to sleep.
bool ThreadTeam::spin_while(const std::atomic<uint32_t>& value, uint32_t old) const {
  const auto changed = [&] { return value.load(std::memory_order_acquire) != old; };
  const Clock::time_point start = Clock::now();
  for (;;) {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (changed()) return true;
      pause();
    }
    const Clock::duration waited = Clock::now() - start;
    if (waited > kSpinTime) return changed();
    if (oversubscribed_ || waited > kPoliteAfter) ::sched_yield();
  }
}

}  // namespace tidemill
