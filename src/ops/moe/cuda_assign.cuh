// Which tokens each expert multiplies, worked out on the device: the host never learns the routing.
#pragma once

#include "ops/cuda/launch.h"

namespace tidemill::cuda {

struct StoredWeights {
  const void* data;
  const uint8_t* scales;
};

// Assignment t * topk + i is choice i of token t; assignment tokens * topk + t is the shared
// expert's of token t. An item is what one block multiplies: some assignments of one expert.
struct Item {
  int32_t expert;  // -1: the shared one
  int32_t first;   // in `order`
  int32_t count;
  int32_t line;   // of all tiles of activations, where the item's begins (cuda_many.cu),
  int32_t lines;  // as many as are multiplied
  StoredWeights w1, w3, w2;
};

struct Assignments {
  int64_t tokens;
  int64_t topk;
  const int32_t* ids;
  const float* weights;
  int32_t* order;  // all assignments: by expert, then the shared expert's
  Item* items;
  int32_t* count;  // of items; of those of routed experts, which are the first

  __host__ __device__ int64_t routed() const { return tokens * topk; }
  __host__ __device__ int64_t all() const { return tokens * (topk + 1); }
  __device__ int64_t token(int32_t assignment) const {
    const auto all = static_cast<int32_t>(routed());
    return assignment < all ? assignment / static_cast<int32_t>(topk) : assignment - all;
  }
  __device__ float weight(int64_t assignment) const {
    return assignment < routed() ? weights[assignment] : 1.0f;
  }
};

// With many assignments an item has a tile of lines_for() lines; the shared expert's have all that
// there can be.
constexpr int kMostOfItem = 144;
constexpr int kLeastLines = 16;
constexpr int kLinesStep = 16;
constexpr __host__ __device__ int lines_for(int assignments) {
  const int more = assignments > kLeastLines ? assignments - kLeastLines : 0;
  return kLeastLines + (more + kLinesStep - 1) / kLinesStep * kLinesStep;
}
static_assert(lines_for(kMostOfItem) == kMostOfItem);

// At most so many items of `size` assignments; a grid's bound.
inline int64_t most_items(int64_t tokens, int64_t topk, int64_t experts, int64_t size) {
  const int64_t routed = tokens * topk;
  const int64_t partly = routed < experts ? routed : experts;
  return routed / size + partly + (tokens + size - 1) / size;
}

// At most so many lines of so many items.
inline int64_t most_lines(int64_t tokens, int64_t topk, int64_t items) {
  return tokens * topk + items * kLinesStep +
         (tokens + kMostOfItem - 1) / kMostOfItem * int64_t{kMostOfItem};
}

constexpr int kAssignThreads = 1024;
static_assert(kAssignThreads == kMostExperts);

// Fills order, items and count: items of at most `size` assignments, of one expert next to each
// other and as many in each as in the next, give or take one. In which order an expert's
// assignments come is open; no result depends on it. Items of up to kMostOfItem are sorted: the
// shared expert's, then those with most lines first, so that blocks which take turns with them have
// the same to do.
void assign(cudaStream_t, const Assignments&, const ExpertWeights* routed,
            const ExpertWeights& shared, int64_t experts, int size);

// The same by one block of kAssignThreads.
__device__ inline void assign_items(const Assignments& a, const ExpertWeights* routed_weights,
                                    const ExpertWeights& shared_weights, int experts, int size) {
  constexpr int kWarps = kAssignThreads / 32;
  __shared__ int next[kMostExperts];  // place in `order` of the expert's next assignment
  __shared__ unsigned long long of_warp[kWarps];
  constexpr int kSizes = kMostOfItem / kLinesStep + 1;
  __shared__ int next_of_size[kSizes];  // place of the next item of so many lines
  const auto expert = static_cast<int>(threadIdx.x);
  const int lane = expert % 32;
  next[expert] = 0;
  __syncthreads();
  const auto routed = static_cast<int>(a.routed());
  for (int i = expert; i < routed; i += kAssignThreads) atomicAdd(&next[a.ids[i]], 1);
  __syncthreads();
  const auto make_item = [](int id, const ExpertWeights& w) -> Item {
    return {id,
            0,
            0,
            0,
            0,
            {w.w1.data, w.w1.scales},
            {w.w3.data, w.w3.scales},
            {w.w2.data, w.w2.scales}};
  };
  // Part i of `parts` of n assignments that begin at `first`.
  const auto put_part = [](Item& item, int first, int n, int i, int parts) {
    const int begin = n * i / parts;
    item.first = first + begin;
    item.count = n * (i + 1) / parts - begin;
  };
  const int count = expert < experts ? next[expert] : 0;
  const int items = (count + size - 1) / size;
  Item item{};
  if (items > 0) item = make_item(expert, routed_weights[expert]);  // takes a while
  // Assignments and, above them, items of the experts up to this one: in the warp, then in all.
  const auto up_to = [lane](unsigned long long sum) {
#pragma unroll
    for (int other = 1; other < 32; other *= 2) {
      const auto below = __shfl_up_sync(0xFFFFFFFFu, sum, other);
      if (lane >= other) sum += below;
    }
    return sum;
  };
  const auto own = static_cast<unsigned long long>(count) | static_cast<unsigned long long>(items)
                                                                << 32;
  auto sum = up_to(own);
  if (lane == 31) of_warp[expert / 32] = sum;
  __syncthreads();
  const auto sums = up_to(of_warp[lane]);
  const auto all_items = static_cast<int>(__shfl_sync(0xFFFFFFFFu, sums, 31) >> 32);
  const auto below = __shfl_sync(0xFFFFFFFFu, sums, max(expert / 32 - 1, 0));
  sum -= own;
  if (expert >= 32) sum += below;
  const auto begin = static_cast<int>(sum & 0xFFFFFFFFu);
  next[expert] = begin;
  const auto first_item = static_cast<int>(sum >> 32);
  const auto tokens = static_cast<int>(a.tokens);
  const int shared_items = (tokens + size - 1) / size;
  const bool sorted = size == kMostOfItem;
  if (sorted) {
    if (expert < kSizes) next_of_size[expert] = 0;
    __syncthreads();
    for (int i = 0; i < items; ++i) {
      put_part(item, begin, count, i, items);
      atomicAdd(&next_of_size[lines_for(item.count) / kLinesStep], 1);
    }
    __syncthreads();
    if (expert == 0) {
      int place = shared_items;
      for (int i = kSizes - 1; i >= 0; --i) {
        const int of_size = next_of_size[i];
        next_of_size[i] = place;
        place += of_size;
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < items; ++i) {
    put_part(item, begin, count, i, items);
    item.line = item.first + (first_item + i) * kLinesStep;
    item.lines = lines_for(item.count);
    const int place =
        sorted ? atomicAdd(&next_of_size[item.lines / kLinesStep], 1) : first_item + i;
    a.items[place] = item;
  }
  for (int i = expert; i < shared_items; i += kAssignThreads) {
    Item of_shared = make_item(-1, shared_weights);
    put_part(of_shared, routed, tokens, i, shared_items);
    of_shared.line = routed + all_items * kLinesStep + i * kMostOfItem;
    of_shared.lines = kMostOfItem;
    a.items[sorted ? i : all_items + i] = of_shared;
  }
  if (expert == 0) {
    a.count[0] = all_items + shared_items;
    a.count[1] = all_items;
  }
  __syncthreads();
  for (int i = expert; i < routed; i += kAssignThreads) {
    a.order[atomicAdd(&next[a.ids[i]], 1)] = i;
  }
  for (int t = expert; t < tokens; t += kAssignThreads) a.order[routed + t] = routed + t;
}

}  // namespace tidemill::cuda
