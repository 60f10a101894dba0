// Which backend tests are for. The environment variable TIDEMILL_TEST_BACKEND=cuda asks for that
// one alone, and it must be there; without it op tests run every backend of the machine, and the
// other rooms' the best of the CPU.
#pragma once

#include <fmt/core.h>

#include <cstdlib>
#include <memory>
#include <string_view>

#include "ops/backend.h"

namespace tidemill {

inline bool testing_cuda_only() {
  const char* name = std::getenv("TIDEMILL_TEST_BACKEND");
  if (name == nullptr || *name == '\0') return false;
  if (std::string_view(name) == "cuda") return true;
  fmt::print(stderr, "TIDEMILL_TEST_BACKEND is '{}': only cuda can be asked for\n", name);
  std::exit(1);
}

// The cuda backend; null where there is none, unless it was asked for.
inline std::unique_ptr<Backend> cuda_backend_for_tests(CudaKernels kernels = CudaKernels::kFast) {
  auto backend = make_cuda_backend(kernels);
  if (backend) return std::move(*backend);
  if (!testing_cuda_only()) return nullptr;
  fmt::print(stderr, "TIDEMILL_TEST_BACKEND=cuda: {}\n", backend.error().message);
  std::exit(1);
}

// route and rope_table call log1p, exp, cos and sin: the host's, or the device's own, which may
// differ in the last bit.
inline bool calls_host_functions(const Backend& backend) {
  return !backend.name().starts_with("cuda");
}

}  // namespace tidemill
