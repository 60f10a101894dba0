// Mixture of experts: router and experts (spec 9).
#pragma once

#include <cstdint>
#include <span>

#include "model/weights.h"
#include "ops/tensor.h"

namespace tidemill {

// s = sqrt(softplus(gate . x)); the topk largest of s + bias (ties: lower id), best first; weights
// s / (sum of the chosen s + 1e-20) * scale, from unbiased scores. float32.
struct RouteArgs {
  Rows x;
  const Matrix* gate = nullptr;
  F32Vector bias;
  F32Vector bias_vl;               // used where image[t] is set
  const uint8_t* image = nullptr;  // [T]; null: no image tokens
  int64_t topk = 0;
  float scale = 1;
  int32_t* ids = nullptr;    // [T, topk]
  float* weights = nullptr;  // [T, topk]
};

// g = min(w1 x, limit), u = clamp(w3 x, +-limit), y_e = w2 bf16(weight * (silu(g) * u)); all three
// products quantise their input (Q8). y = bf16(sum over chosen experts in ascending id + shared).
struct ExpertsArgs {
  Rows x;
  std::span<const ExpertWeights> experts;
  const ExpertWeights* table = nullptr;  // MoeWeights::table
  const ExpertWeights* shared = nullptr;
  const int32_t* ids = nullptr;
  const float* weights = nullptr;
  int64_t topk = 0;
  float swiglu_limit = 10;
  Rows y;
};

}  // namespace tidemill
