#include <cub/block/block_scan.cuh>

#include "ops/moe/cuda_assign.cuh"

namespace tidemill::cuda {
namespace {

constexpr int kThreads = 1024;
static_assert(kThreads >= kMostExperts);

__global__ void __launch_bounds__(kThreads)
    assign_kernel(Assignments a, const ExpertWeights* routed_weights, ExpertWeights shared_weights,
                  int experts, int size) {
  using Scan = cub::BlockScan<int, kThreads>;
  __shared__ typename Scan::TempStorage storage;
  __shared__ int next[kMostExperts];  // place in `order` of the expert's next assignment
  const int expert = threadIdx.x;
  next[expert] = 0;
  __syncthreads();
  const auto routed = static_cast<int>(a.routed());
  for (int i = threadIdx.x; i < routed; i += kThreads) atomicAdd(&next[a.ids[i]], 1);
  __syncthreads();
  const int count = expert < experts ? next[expert] : 0;
  int begin = 0;
  Scan(storage).ExclusiveSum(count, begin);
  __syncthreads();
  const int items = (count + size - 1) / size;
  int item = 0;
  int all_items = 0;
  Scan(storage).ExclusiveSum(items, item, all_items);
  next[expert] = begin;
  const auto make_item = [](int id, int first, int n, const ExpertWeights& w) -> Item {
    return {
        id, first, n, {w.w1.data, w.w1.scales}, {w.w3.data, w.w3.scales}, {w.w2.data, w.w2.scales}};
  };
  for (int i = 0; i < items; ++i) {
    a.items[item + i] =
        make_item(expert, begin + i * size, min(size, count - i * size), routed_weights[expert]);
  }
  const auto tokens = static_cast<int>(a.tokens);
  for (int i = threadIdx.x; i * size < tokens; i += kThreads) {
    a.items[all_items + i] =
        make_item(-1, routed + i * size, min(size, tokens - i * size), shared_weights);
  }
  if (threadIdx.x == 0) {
    a.count[0] = all_items + (tokens + size - 1) / size;
    a.count[1] = all_items;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < routed; i += kThreads) {
    a.order[atomicAdd(&next[a.ids[i]], 1)] = i;
  }
  for (int t = threadIdx.x; t < tokens; t += kThreads) a.order[routed + t] = routed + t;
}

}  // namespace

void assign(cudaStream_t stream, const Assignments& a, const ExpertWeights* routed,
            const ExpertWeights& shared, int64_t experts, int size) {
  assign_kernel<<<1, kThreads, 0, stream>>>(a, routed, shared, static_cast<int>(experts), size);
}

}  // namespace tidemill::cuda
