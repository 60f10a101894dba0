// What a build without CUDA says of it.
#include "ops/backend.h"

namespace tidemill {

Result<std::unique_ptr<Backend>> make_cuda_backend(CudaKernels) {
  return fail(ErrorCode::kDevice,
              "this program was built without CUDA: build it with -DTIDEMILL_CUDA=ON, or use "
              "--backend cpu");
}

}  // namespace tidemill
