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
  StoredWeights w1, w3, w2;
};

struct Assignments {
  int64_t tokens;
  int64_t topk;
  const int32_t* ids;
  const float* weights;
  int32_t* order;  // all assignments: by expert, then the shared expert's
  Item* items;
  int32_t* count;  // of items; of those of routed experts

  __host__ __device__ int64_t routed() const { return tokens * topk; }
  __host__ __device__ int64_t all() const { return tokens * (topk + 1); }
  __device__ int64_t token(int64_t assignment) const {
    return assignment < routed() ? assignment / topk : assignment - routed();
  }
  __device__ float weight(int64_t assignment) const {
    return assignment < routed() ? weights[assignment] : 1.0f;
  }
};

// At most so many items of `size` assignments; a grid's bound.
inline int64_t most_items(int64_t tokens, int64_t topk, int64_t experts, int64_t size) {
  const int64_t routed = tokens * topk;
  const int64_t partly = routed < experts ? routed : experts;
  return routed / size + partly + (tokens + size - 1) / size;
}

// Fills order, items and count: items of at most `size` assignments, of one expert next to each
// other. In which order an expert's assignments come is open; no result depends on it.
void assign(cudaStream_t, const Assignments&, const ExpertWeights* routed,
            const ExpertWeights& shared, int64_t experts, int size);

}  // namespace tidemill::cuda
