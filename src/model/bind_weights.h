// From tensor names of a checkpoint to the typed views of weights.h.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "model/topology.h"
#include "model/weights.h"

namespace tidemill {

struct BoundWeights {
  ModelWeights weights;  // points into the checkpoint and into `aligned`
  // Copies of bf16 and f32 tensors that a file places at an odd address; empty for files of the
  // usual writers, and never experts or Engram tables.
  std::vector<std::unique_ptr<std::byte[]>> aligned;
  // Tensors that are neither bound nor of the vision tower, in order of their names.
  std::vector<std::string> unexpected;
};

// A tensor that a checkpoint has to have.
struct ExpectedTensor {
  std::string name;
  TensorType type = TensorType::kU8;
  std::vector<int64_t> shape;
  int64_t bytes() const;
};

// All of them, in the order of the forward pass; without optional ones (gate.bias_vl).
std::vector<ExpectedTensor> expected_tensors(const Config& config, const Topology& topology);

// Every tensor that the configuration asks for, with its exact type and shape. Reads no data except
// for `aligned`. Errors: kTensorMissing, kTensorMismatch.
Result<BoundWeights> bind_weights(const Checkpoint& checkpoint, const Config& config,
                                  const Topology& topology);

}  // namespace tidemill
