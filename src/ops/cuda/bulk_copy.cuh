// Copies from global to shared memory that run behind the program (Hopper's bulk copies), and the
// barriers that tell when they are there.
//
// A barrier has phases. One thread, or as many as it was made for, says how many bytes it brings in
// the current one (expect) and starts the copies; the phase ends when all are there, and whoever
// waits for it sees them. Phases are waited for by parity: 0 for the first.
#pragma once

#include <cstdint>

namespace tidemill::cuda {

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Before a barrier of all threads that use it; `threads` of them expect bytes in each phase.
__device__ inline void copies_init(uint64_t* barrier, uint32_t threads = 1) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(threads)
               : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void copies_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}

// Both addresses and the size are multiples of 16.
__device__ inline void copy_start(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

__device__ inline void copies_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n"
      "@!there bra again;\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace tidemill::cuda
