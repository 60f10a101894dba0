// The operations on which speed hangs, at the shapes of the released model, with inputs in the
// device's memory. Weights, lists and cache rows take turns so that they come from memory where
// they do in a model of many layers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/cuda/launch.h"

namespace tidemill::gpu {

// What one call cannot do without: weights and rows of caches that it touches, activations read and
// written once.
struct Work {
  double bytes = 0;
  double tensor_flops = 0;  // products of bf16, FP8 and FP4 values
  double f32_flops = 0;     // float32 products and sums, not fused
};

struct Prepared {
  std::function<void(cuda::Launch&)> call;  // owns its inputs but for weights
  Work work;
};

// Up to so many tokens each is of a sequence of its own, above all are of one.
constexpr int64_t kMostDecode = 128;

using Inputs = std::function<Prepared(int64_t tokens)>;

struct Case {
  std::string name;
  int64_t most_tokens;
  std::function<Inputs()> open;  // makes the weights; Inputs own them and must outlive Prepared
};
std::vector<Case> cases(int64_t context);

// A class of operations: its constructor makes the weights.
template <typename Op, typename... Args>
Case with_weights(const char* name, const Args&... args) {
  return {name, 8192, [args...]() -> Inputs {
            return [op = std::make_shared<Op>(args...)](int64_t tokens) { return (*op)(tokens); };
          }};
}

}  // namespace tidemill::gpu
