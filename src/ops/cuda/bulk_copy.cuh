// Copies from global to shared memory that run behind the program: bulk copies, which one thread
// starts and barriers count, and copies of a few bytes that each thread makes for itself.
#pragma once

#include <cstdint>

namespace tidemill::cuda {

// Counts arrivals (and bytes on their way) phase by phase. Lies in shared memory.
struct Barrier {
  uint64_t state;

  __device__ uint32_t address() const {
    return static_cast<uint32_t>(__cvta_generic_to_shared(&state));
  }
  // One thread, then its fence_barriers() and a barrier of the block.
  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals)
                 : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
  }
  // Arrives, and has the phase wait for so many bytes.
  __device__ void arrive_expecting(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()),
                 "r"(bytes)
                 : "memory");
  }
  // Arrives once all that this thread has copied (copy_async) is there.
  __device__ void arrive_copied() {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address())
                 : "memory");
  }
  // Until the phase of this parity (0: the first) has ended. A barrier that was never used counts
  // as having ended a phase of parity 1.
  __device__ void wait(uint32_t parity) const {
    asm volatile(
        "{\n"
        ".reg .pred ended;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
        "@!ended bra again;\n"
        "}\n" ::"r"(address()),
        "r"(parity)
        : "memory");
  }
};

__device__ inline void fence_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Both addresses and the size are multiples of 16 bytes; `arrived` was told to expect them.
__device__ inline void bulk_copy(void* shared, const void* global, uint32_t bytes,
                                 Barrier& arrived) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
      "l"(global), "r"(bytes), "r"(arrived.address())
      : "memory");
}

// The other way, multiples of 16 bytes again. What threads wrote to shared memory is seen after
// each one's fence_writes() and a barrier. bulk_read() by the thread that copies: all has been
// read.
__device__ inline void fence_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void bulk_store(void* global, uint32_t shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global),
               "r"(shared), "r"(bytes)
               : "memory");
}
__device__ inline void bulk_read() {
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}

// 16, 8 or 4 bytes, aligned to their size. Of 16, L2 fetches 256 bytes around them: rows are read
// to their end.
template <int kBytes>
__device__ void copy_async(uint32_t shared, const void* global) {
  static_assert(kBytes == 16 || kBytes == 8 || kBytes == 4);
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(shared), "l"(global)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared), "l"(global), "n"(kBytes)
                 : "memory");
  }
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most so many groups of this thread's copies are under way.
template <int kGroups>
__device__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}
__device__ inline uint4 load_shared(uint32_t shared) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared)
               : "memory");
  return v;
}
__device__ inline uint2 load_shared_words(uint32_t shared) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(shared) : "memory");
  return v;
}

}  // namespace tidemill::cuda
