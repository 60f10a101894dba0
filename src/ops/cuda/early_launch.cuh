// Kernels that begin while the kernel before them in the stream still runs: what a kernel does
// before it reads results (finding its way, reading weights) costs no time of its own then.
//
// A kernel launched by launch_early() may begin when each block of the kernel before it has called
// allow_next() or has ended. Its contract:
// - Every thread calls await_previous() before it reads what an earlier kernel wrote, and before it
//   writes at all: scratch memory is reused from call to call. Then the kernel before has ended,
//   and as that one waited too, so have all before it, and their results are visible.
// - Every thread calls it, also in blocks that have nothing to do. Only so is the end of a kernel
//   the end of all before it, also for kernels that are launched as usual.
// - Weights and tables of weights may be read at any time: they do not change during a step.
// A kernel that calls allow_next() only after await_previous() lets the next one read, even before
// that waits, what was written before this one; past L1 (__ldcg), which may have older bytes.
//
// Where streams part or meet (cuda_lanes.h), the first kernel behind an event of another stream is
// launched as usual: it begins when the kernels before it in both have ended, and with them, by the
// contract, all before those. The kernels behind it are early again.
//
// A multiprocessor divides its memory into shared memory and cache anew only when it is empty, so
// only kernels that want it divided alike run there side by side: all those launched here do.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "ops/cuda/launch.h"

namespace tidemill::cuda {

__device__ inline void allow_next() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ inline void await_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Not before the kernel before has ended, if not `early`. Errors: as of a launch
// (cudaGetLastError).
template <typename... Parameters, typename... Arguments>
void launch_alike(bool early, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                  int shared_bytes, cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attributes[0].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch{};
  launch.gridDim = grid;
  launch.blockDim = block;
  launch.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  launch.stream = stream;
  launch.attrs = attributes;
  launch.numAttrs = !take_event(stream) && early ? 2 : 1;
  cudaLaunchKernelEx(&launch, kernel, arguments...);
}

template <typename... Parameters, typename... Arguments>
void launch_early(void (*kernel)(Parameters...), dim3 grid, dim3 block, int shared_bytes,
                  cudaStream_t stream, const Arguments&... arguments) {
  launch_alike(true, kernel, grid, block, shared_bytes, stream, arguments...);
}

}  // namespace tidemill::cuda
