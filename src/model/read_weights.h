// The one pass over a checkpoint's data before it is used.
#pragma once

#include <functional>
#include <string_view>

#include "base/result.h"
#include "model/safetensors.h"

namespace tidemill {

// Looks for the scale byte 255 (NaN) in every F8_E8M0 tensor, and touches the pages of the other
// tensors that `wanted` names, so that no request waits for the disk. Nothing is copied: the pages
// stay the kernel's file cache, counted once. Goes through the files in order, with the kernel
// reading ahead. `progress` is called from this thread with a fraction in 0..1. Errors:
// kTensorValue with the tensor and the place of the byte.
Status read_weights(const Checkpoint& checkpoint,
                    const std::function<bool(std::string_view)>& wanted,
                    const std::function<void(double)>& progress);

}  // namespace tidemill
