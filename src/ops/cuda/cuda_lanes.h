// Streams beside that of a step (Backend::beside). They part and meet by events, which a capture
// turns into edges of its graph. Kernels of several may share the device: none may wait for blocks
// of its own that have not begun, but for those of its cluster.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <functional>

#include "ops/backend.h"
#include "ops/cuda/launch.h"

namespace tidemill::cuda {

// One thread uses it at a time. Errors of CUDA are as of a launch (cudaGetLastError).
class Lanes {
 public:
  // Kernels of more fill the device: beside others they take as long.
  static constexpr int64_t kMostRows = 32;

  Lanes() = default;
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  // Ops of a step are launched on `stream`, which the caller owns.
  cudaError_t open(cudaStream_t stream, bool plain);

  Launch& main() { return main_; }
  // Where ops are launched now.
  Launch& current() { return *current_; }
  int64_t moves() const;  // Launch::moves of all

  // While it is not allowed, nothing runs beside.
  void allow(bool allowed) { allowed_ = allowed; }
  void beside(int lane, const std::function<void()>& ops);
  void join(int lane);

 private:
  struct Lane {
    Launch launch;
    cudaEvent_t forked = nullptr;  // in main_'s stream
    cudaEvent_t done = nullptr;    // in its own
    bool running = false;
  };

  Launch main_;
  std::array<Lane, Backend::kLanes> lanes_;
  Launch* current_ = &main_;
  bool allowed_ = false;
};

}  // namespace tidemill::cuda
