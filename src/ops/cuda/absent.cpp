// What a build without CUDA says of it.
#include "ops/backend.h"
#include "ops/cuda/device_rates.h"

namespace tidemill {

Result<std::unique_ptr<Backend>> make_cuda_backend(CudaKernels, CudaGraphs) {
  return fail(ErrorCode::kDevice,
              "this program was built without CUDA: build it with -DTIDEMILL_CUDA=ON, or use "
              "--backend cpu");
}

std::string cuda_device_name() { return {}; }
DeviceRates cuda_device_rates() { return {}; }

}  // namespace tidemill
