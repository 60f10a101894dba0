// Weights in the memory of a device backend.
#pragma once

#include <vector>

#include "model/weights.h"
#include "ops/backend.h"

namespace tidemill {

// Every tensor is copied once, to a multiple of 256 bytes; those that share memory on the host
// (aliased_checkpoint.h) share it on the device too.
class PlacedWeights {
 public:
  // Model and backend must outlive it. `period`: weights repeat themselves after so many bytes,
  // unless it is 0, and are copied from the host once. Errors: kOutOfMemory; kDevice.
  static Result<PlacedWeights> create(const ModelWeights& weights, Backend& backend,
                                      int64_t period = 0);
  // What create() would allocate, to less than a page.
  static int64_t size_of(const ModelWeights& weights);

  const ModelWeights& weights() const { return weights_; }
  int64_t bytes() const { return bytes_; }

 private:
  Status place_table(MoeWeights& moe, Backend& backend);

  ModelWeights weights_;
  std::vector<Backend::Buffer> memory_;
  int64_t bytes_ = 0;
};

}  // namespace tidemill
