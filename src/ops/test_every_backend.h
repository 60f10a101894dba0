// Every backend that must agree with the reference, and what it is compared with.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/cpu_backend.h"
#include "ops/linear/emulated_amx.h"
#include "ops/test_backend.h"
#include "ops/test_host_calls.h"
#include "ops/test_inputs.h"
#include "ops/test_narrow_rows.h"

namespace tidemill {

// The cuda backend with plain kernels over host memory; null where there is none. Never destroyed:
// at the end of the program the driver may go first.
template <typename Calls>
Calls* cuda_calls() {
  static Calls* const calls = [] {
    auto cuda = cuda_backend_for_tests(CudaKernels::kPlain);
    return cuda ? new Calls(std::move(cuda)) : nullptr;
  }();
  return calls;
}
inline HostCalls* cuda_host_calls() { return cuda_calls<HostCalls>(); }

// Calls body for the cpu backend of every instruction set of this machine, and of an emulated one,
// with 1, 2 and 3 threads, the last on two (invented) memory nodes; for the reference backend on
// copies, which tests the copying; and for the cuda backend, if there is one. What they are
// compared with depends on their product order.
inline void for_each_backend(const std::function<void(Backend&, const std::string& label)>& body) {
  static ThreadTeam teams[] = {ThreadTeam(1), ThreadTeam(2),
                               ThreadTeam(3, NodeShares(3, {{0, {900}}, {1, {901, 902}}}))};
  if (Backend* cuda = cuda_host_calls()) body(*cuda, "cuda");
  if (testing_cuda_only()) return;
  static HostCalls copies(make_reference_backend(teams[0]));
  body(copies, "reference on copies");
  const auto run = [&](Backend& backend, const ThreadTeam& team) {
    body(backend, fmt::format("{} with {} threads", backend.name(), team.size()));
  };
  for (ThreadTeam& team : teams) {
    for (const CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16, CpuIsa::kAmx}) {
      if (cpu_supports(isa)) run(**make_cpu_backend(team, isa), team);
    }
#if defined(__x86_64__)
    if (cpu_supports(CpuIsa::kAvx512Bf16)) {
      CpuBackend emulated(team, emulated_amx_kernels());
      run(emulated, team);
    }
#endif
  }
}

// The same, and the cuda backend once more with rows of bf16: for linear, rope and attend.
inline void for_each_backend_and_rows(
    const std::function<void(Backend&, const std::string& label)>& body) {
  for_each_backend(body);
  if (Backend* narrow = cuda_calls<NarrowRows>()) body(*narrow, "cuda, rows of bf16");
}

// What the reference computes, once for each product order that is asked for.
template <typename Compute>
class Expected {
 public:
  using Value = std::invoke_result_t<const Compute&, Backend&>;
  explicit Expected(Compute compute) : compute_(std::move(compute)) {}
  const Value& operator[](const Backend& like) {
    auto& value = value_[static_cast<size_t>(like.product_order())];
    if (!value) value = compute_(reference_backend(like.product_order()));
    return *value;
  }

 private:
  Compute compute_;
  std::optional<Value> value_[2];
};

// Same bits, any NaN being equal to any NaN. Looks at the whole memory, gaps included.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) return false;
  }
  return true;
}

}  // namespace tidemill
