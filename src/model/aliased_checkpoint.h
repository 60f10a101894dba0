// A checkpoint without a file: random weights of any configuration in as much memory as there is,
// so that the speed of a model is measured on a machine that could not hold it.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "model/topology.h"

namespace tidemill {

// Every tensor of the configuration, valid for its type: no NaN, products that keep activations
// near 1. Tensors lie one behind the other in `bytes` of memory and start again at its beginning
// when it is full, so neighbours in the forward pass never share memory and caches see the traffic
// of the whole model, as long as `bytes` is far beyond them. FP8 and FP4 codes, scales, bf16 and
// f32 values have a part each. All memory is touched before this returns;
// huge pages are asked for. `period`, a multiple of the page size unless it is 0: each part repeats
// itself after so many bytes, which take memory once only: for a device, which gets memory of its
// own for all of them. Errors: kInvalidArgument when a single tensor is larger than the memory
// (Engram tables: a configuration with a smaller engram_vocab_size has the same traffic),
// kOutOfMemory.
Result<Checkpoint> aliased_checkpoint(const Config& config, const Topology& topology, int64_t bytes,
                                      int64_t period = 0);

}  // namespace tidemill
