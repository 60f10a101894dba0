#include "ops/moe/cuda_assign.cuh"

namespace tidemill::cuda {
namespace {

__global__ void __launch_bounds__(kAssignThreads)
    assign_kernel(Assignments a, const ExpertWeights* routed, ExpertWeights shared, int experts,
                  int size) {
  assign_items(a, routed, shared, experts, size);
}

}  // namespace

void assign(cudaStream_t stream, const Assignments& a, const ExpertWeights* routed,
            const ExpertWeights& shared, int64_t experts, int size) {
  assign_kernel<<<1, kAssignThreads, 0, stream>>>(a, routed, shared, static_cast<int>(experts),
                                                  size);
}

}  // namespace tidemill::cuda
