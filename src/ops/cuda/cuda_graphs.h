// Launches that come again, as CUDA graphs: one call of the driver instead of one for each kernel
// (0.55 us a node against 4.2 us a launch, measured on an H200's host).
//
// A key is launched as it is the first time, so that scratch memory has grown and kernels are
// loaded; captured the second time; and afterwards launched as a graph, until scratch memory moves.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ops/cuda/cuda_lanes.h"

namespace tidemill::cuda {

// One thread uses it at a time.
class Graphs {
 public:
  Graphs() = default;
  ~Graphs();
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  cudaError_t open();
  // Rows that a step is filled up to; 0: too many for launches to be what takes the time.
  static int64_t rows_for(int64_t rows);

  // `ops` launches on lanes, and has them joined. Failed captures are no errors: then it has done
  // so.
  cudaError_t repeat(Lanes& lanes, std::span<const int64_t> key, const std::function<void()>& ops);

  // While a capture is under way nothing runs, and what goes wrong only makes the capture void.
  bool capturing() const { return capturing_; }
  void spoil(cudaError_t error) {
    if (spoiled_ == cudaSuccess) spoiled_ = error;
  }

 private:
  struct Work {
    std::vector<int64_t> key;
    cudaGraphExec_t graph = nullptr;
    int64_t moves = 0;      // Lanes::moves when it was captured
    int64_t bytes = 0;      // of the device
    int64_t last_used = 0;  // as a count of calls
    int failures = 0;       // to capture it, one after the other
  };

  Work* find(std::span<const int64_t> key);
  // In place of the one that has not been used for longest, if there are many.
  Work& add(std::span<const int64_t> key, cudaStream_t stream);
  bool capture(Work& work, Lanes& lanes, const std::function<void()>& ops);
  cudaError_t instantiate(Work& work, cudaGraph_t graph, cudaStream_t stream);
  void drop(Work& work, cudaStream_t stream);

  cudaStream_t stream_ = nullptr;  // only captured: copies on the launches' own are no part of it
  std::vector<Work> works_;
  int64_t calls_ = 0;
  bool capturing_ = false;
  cudaError_t spoiled_ = cudaSuccess;
};

}  // namespace tidemill::cuda
