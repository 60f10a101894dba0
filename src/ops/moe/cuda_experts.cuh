// Experts on tensor cores: items of few assignments (cuda_few.cu) or of many (cuda_many.cu), which
// give a token the same bits.
#pragma once

#include "ops/cuda/activations.cuh"
#include "ops/cuda/launch.h"
#include "ops/moe/cuda_assign.cuh"

namespace tidemill::cuda {

constexpr WeightFormat kRouted = WeightFormat::kFp4Row;
constexpr WeightFormat kShared = WeightFormat::kFp8Block;

struct Moe {
  Assignments assignments;
  int64_t hidden;  // width of the model
  int64_t inter;   // width of an expert
  float limit;
  Rows x;
  uint16_t* x_routed;  // activations in the order of a format, a row a token
  uint16_t* x_shared;
  const uint16_t* tiles;  // the same, a tile an item (as kTiles, of item.lines lines)
  uint16_t* inner;        // inner activations: a row an assignment, or tiles like x_routed
  uint16_t* products;     // bf16 [assignments, hidden]

  __device__ float swiglu(float gate, float up, float weight) const {
    const float g = smaller(round_bf16(gate), limit);
    const float u = clamped(round_bf16(up), limit);
    return round_bf16(mul(weight, mul(mul(g, canonical_sigmoid(g)), u)));
  }
};

// From a.x to a.products by way of a.assignments, where `items` are most_items() of kGroupTokens or
// of kMostOfItem assignments each; memory for a.x_routed, a.x_shared and a.tiles is theirs to take.
void experts_few(Launch& l, Moe& a, const ExpertsArgs& e, int64_t items);
void experts_many(Launch& l, Moe& a, const ExpertsArgs& e, int64_t items, int64_t lines);

// Q8 of eight columns of a token, number i of all, in both orders; nothing where there are none so
// many. By whole warps.
template <Layout kLayout>
__device__ inline void store_eight(const Rows& x, int64_t i, uint16_t* routed, uint16_t* shared) {
  const int64_t eights = x.width / 8;
  const int64_t last = x.count * eights - 1;
  const int64_t n = min(i, last);
  float values[8];
  load_eight(x, n / eights, n % eights * 8, values);
  quantise_eight(values);
  put_eight<kRouted, kLayout>(values, routed, n / eights, x.width, n % eights * 8, i > last);
  put_eight<kShared, kLayout>(values, shared, n / eights, x.width, n % eights * 8, i > last);
}

// Memory for them. False: there is none.
inline bool take_activations(Launch& l, Moe& a) {
  const int64_t elements = a.x.count * a.hidden;
  a.x_routed = static_cast<uint16_t*>(l.quantised.take(2 * elements * int64_t{2}, l.stream));
  a.x_shared = a.x_routed + elements;
  return a.x_routed != nullptr;
}

}  // namespace tidemill::cuda
