#include "ops/cpu_backend.h"

#include <new>

namespace tidemill {

void Scratch::Free::operator()(float* p) const { ::operator delete (p, std::align_val_t{64}); }

float* Scratch::floats(int64_t n) {
  if (n > size_) {
    const auto bytes = static_cast<size_t>(n) * sizeof(float);
    memory_.reset();
    memory_.reset(static_cast<float*>(::operator new (bytes, std::align_val_t{64})));
    size_ = n;
  }
  return memory_.get();
}

bool cpu_supports(CpuIsa isa) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  // Cooper Lake has the one without the other; it takes the table without BF16.
  const bool bf16 = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
  switch (isa) {
    case CpuIsa::kAvx512Bf16:
      return avx2 && avx512 && bf16;
    case CpuIsa::kAvx512:
      return avx2 && avx512;
    default:
      return avx2;
  }
#else
  static_cast<void>(isa);
  return false;
#endif
}

Result<std::unique_ptr<Backend>> make_cpu_backend(ThreadTeam& team, CpuIsa isa) {
  if (!cpu_supports(isa)) {
    return fail(ErrorCode::kInvalidArgument, "this machine lacks {}; use the reference backend",
                isa == CpuIsa::kAvx512Bf16 ? "AVX-512 with BF16"
                : isa == CpuIsa::kAvx512   ? "AVX-512 (F, BW, VL, DQ)"
                                           : "AVX2, FMA or F16C");
  }
#if defined(__x86_64__)
  if (isa == CpuIsa::kBest) {
    isa = cpu_supports(CpuIsa::kAvx512Bf16) ? CpuIsa::kAvx512Bf16
          : cpu_supports(CpuIsa::kAvx512)   ? CpuIsa::kAvx512
                                            : CpuIsa::kAvx2;
  }
  return std::make_unique<CpuBackend>(team, isa == CpuIsa::kAvx512Bf16 ? avx512bf16_kernels()
                                            : isa == CpuIsa::kAvx512   ? avx512_kernels()
                                                                       : avx2_kernels());
#else
  static_cast<void>(team);
  return fail(ErrorCode::kInternal, "no kernels for this architecture");
#endif
}

}  // namespace tidemill
