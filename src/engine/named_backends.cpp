#include "engine/named_backends.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

namespace tidemill {
namespace {

using Made = Result<std::unique_ptr<Backend>>;

struct Named {
  std::string_view name;
  Made (*make)(const Rounding& rounding, ThreadTeam& team);
  bool any_rounding = false;
  bool on_device = false;
};

template <CpuIsa kIsa>
Made cpu(const Rounding&, ThreadTeam& team) {
  return make_cpu_backend(team, kIsa);
}
template <CudaKernels kKernels, CudaGraphs kGraphs>
Made cuda(const Rounding&, ThreadTeam&) {
  return make_cuda_backend(kKernels, kGraphs);
}
template <ProductOrder kOrder>
Made reference(const Rounding& rounding, ThreadTeam& team) {
  return make_reference_backend(team, rounding, kOrder);
}

constexpr Named kBackends[] = {
    {"cpu", cpu<CpuIsa::kBest>},
    {"cpu-avx2", cpu<CpuIsa::kAvx2>},
    {"cpu-avx512", cpu<CpuIsa::kAvx512>},
    {"cpu-avx512bf16", cpu<CpuIsa::kAvx512Bf16>},
    {"cpu-amx", cpu<CpuIsa::kAmx>},
    {"cuda", cuda<CudaKernels::kFast, CudaGraphs::kOn>, false, true},
    {"cuda-eager", cuda<CudaKernels::kFast, CudaGraphs::kOff>, false, true},
    {"cuda-plain", cuda<CudaKernels::kPlain, CudaGraphs::kOff>, false, true},
    {"reference", reference<ProductOrder::kPairLanes>, true},
    {"reference-tiles", reference<ProductOrder::kTiles>, true},
};

const Named* find(std::string_view name) {
  const auto found = std::find_if(std::begin(kBackends), std::end(kBackends),
                                  [&](const Named& backend) { return backend.name == name; });
  return found == std::end(kBackends) ? nullptr : found;
}

}  // namespace

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const Named& backend : kBackends) names.emplace_back(backend.name);
  return names;
}

std::string_view backend_list() {
  static const std::string list = fmt::format("{}", fmt::join(backend_names(), ", "));
  return list;
}

bool on_device(std::string_view name) {
  const Named* const backend = find(name);
  return backend != nullptr && backend->on_device;
}

Made make_named_backend(std::string_view name, const Rounding& rounding, ThreadTeam& team) {
  const Named* const found = find(name);
  if (found == nullptr) {
    return fail(ErrorCode::kInvalidArgument, "backend '{}' is not one of {}", name, backend_list());
  }
  const bool released = rounding.bf16 && rounding.activations && rounding.cache;
  if (!released && !found->any_rounding) {
    return fail(ErrorCode::kConflictingOptions,
                "backend '{}' keeps every rounding of the released model; other roundings need "
                "--backend reference",
                name);
  }
  return found->make(rounding, team);
}

}  // namespace tidemill
