#include "ops/cpu_backend.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

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

#if defined(__x86_64__)
namespace {

// Whether the CPU has tiles with bf16 products and Linux lets this process use them: their state is
// large, so it wants to be asked (arch/x86/include/uapi/asm/prctl.h).
bool amx_permitted() {
  constexpr unsigned kTiles = 1u << 24;
  constexpr unsigned kBf16 = 1u << 22;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kTiles) == 0 || (edx & kBf16) == 0) return false;
  constexpr long kRequestPermission = 0x1023;
  constexpr long kTileData = 18;
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

const CpuKernels& kernels_of(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kAmx:
      return amx_kernels();
    case CpuIsa::kAvx512Bf16:
      return avx512bf16_kernels();
    case CpuIsa::kAvx512:
      return avx512_kernels();
    default:
      return avx2_kernels();
  }
}

}  // namespace
#endif

bool cpu_supports(CpuIsa isa) {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  // Cooper Lake has the one without the other; it takes the table without BF16.
  const bool bf16 = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
  switch (isa) {
    case CpuIsa::kAmx: {
      static const bool kPermitted = avx2 && avx512 && bf16 && amx_permitted();
      return kPermitted;
    }
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
                isa == CpuIsa::kAmx          ? "AMX-BF16, or the system does not allow it"
                : isa == CpuIsa::kAvx512Bf16 ? "AVX-512 with BF16"
                : isa == CpuIsa::kAvx512     ? "AVX-512 (F, BW, VL, DQ)"
                                             : "AVX2, FMA or F16C");
  }
#if defined(__x86_64__)
  if (isa == CpuIsa::kBest) {
    for (const CpuIsa other : {CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16, CpuIsa::kAmx}) {
      if (cpu_supports(other)) isa = other;
    }
  }
  return std::make_unique<CpuBackend>(team, kernels_of(isa));
#else
  static_cast<void>(team);
  return fail(ErrorCode::kInternal, "no kernels for this architecture");
#endif
}

}  // namespace tidemill
