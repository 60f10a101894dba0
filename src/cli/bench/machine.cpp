#include "cli/bench/machine.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <numeric>

#include "base/clock.h"
#include "base/cpu_quota.h"
#include "base/thread_team.h"
#include "cli/input.h"
#include "cli/inspect_report.h"
#include "ops/backend.h"
#include "ops/cuda/device_rates.h"
#include "ops/peak_rate.h"
#include "ops/units.h"
#include "state/layout.h"

namespace tidemill::cli {
namespace {

bool on_device(std::string_view backend) { return backend.starts_with("cuda"); }

std::string isa_of(std::string_view backend) {
  if (on_device(backend)) return cuda_device_name();
  if (backend == "cpu-amx") return "amx";
  if (backend == "cpu-avx512bf16") return "avx512bf16";
  if (backend == "cpu-avx512") return "avx512";
  if (backend == "cpu-avx2") return "avx2";
  if (backend != "cpu") return "scalar";
  if (cpu_supports(CpuIsa::kAmx)) return "amx";
  if (cpu_supports(CpuIsa::kAvx512Bf16)) return "avx512bf16";
  return cpu_supports(CpuIsa::kAvx512) ? "avx512" : "avx2";
}

}  // namespace

std::string cpu_model(std::string_view cpuinfo) {
  const size_t name = cpuinfo.find("model name");
  const size_t colon = cpuinfo.find(": ", std::min(name, cpuinfo.size()));
  if (colon == std::string_view::npos) return "unknown";
  const std::string_view rest = cpuinfo.substr(colon + 2);
  return std::string(rest.substr(0, rest.find('\n')));
}

Machine this_machine(std::string_view backend, int threads) {
  Machine machine;
  machine.cpu = cpu_model(read_input("/proc/cpuinfo").value_or(""));
  machine.isa = isa_of(backend);
  machine.cpus = static_cast<int>(allowed_cpus().size());
  machine.threads = threads;
  if (::getloadavg(&machine.load, 1) != 1) machine.load = 0;
  return machine;
}

double measure_read_bandwidth(std::string_view backend, int threads) {
  if (on_device(backend)) return cuda_device_rates().read_bytes_per_second;
  constexpr int64_t kWords = int64_t{32} << 20;
  constexpr int kPasses = 7;
  const auto memory = std::make_unique_for_overwrite<uint64_t[]>(kWords);
  ThreadTeam team(threads);
  const int64_t parts = int64_t{3} * team.size();
  NextUnits next;
  const auto each_part = [&](const auto& body) {
    share_units(team, next, 1, parts, [&](int64_t part, int) {
      body(memory.get() + kWords * part / parts, memory.get() + kWords * (part + 1) / parts);
    });
  };
  // On several memory nodes, first touched near those who will read it.
  each_part([](uint64_t* first, uint64_t* end) { std::fill(first, end, uint64_t{1}); });
  std::atomic<uint64_t> sink = 0;  // a sum that nobody wants is not computed
  double best = INFINITY;
  for (int pass = 0; pass < kPasses; ++pass) {
    const Clock::time_point begin = Clock::now();
    each_part([&](const uint64_t* first, const uint64_t* end) {
      sink.fetch_add(std::accumulate(first, end, uint64_t{0}), std::memory_order_relaxed);
    });
    best = std::min(best, seconds_since(begin));
  }
  return static_cast<double>(kWords) * sizeof(uint64_t) / best;
}

double WeightTraffic::bytes(double rows) const {
  const double touched = 1 - std::pow(1 - expert_share, rows);
  return static_cast<double>(once_bytes) + rows * static_cast<double>(row_bytes) +
         touched * static_cast<double>(expert_bytes);
}

double measure_peak_flops(std::string_view backend, int threads) {
  if (on_device(backend)) return cuda_device_rates().flops_per_second;
  const std::string isa = isa_of(backend);
  ThreadTeam team(threads);
  if (isa == "amx") return peak_flops(team, CpuIsa::kAmx);
  if (isa == "avx512bf16") return peak_flops(team, CpuIsa::kAvx512Bf16);
  if (isa == "avx512") return peak_flops(team, CpuIsa::kAvx512);
  return isa == "avx2" ? peak_flops(team, CpuIsa::kAvx2) : 0;
}

PrefillWork prefill_work(const Model& model) {
  const auto sum = [](std::initializer_list<const Matrix*> matrices) {
    int64_t weights = 0;
    for (const Matrix* m : matrices) weights += m->data == nullptr ? 0 : m->rows * m->cols;
    return weights;
  };
  const auto expert = [&](const ExpertWeights& e) { return sum({&e.w1, &e.w3, &e.w2}); };
  int64_t weights = 0;
  for (const LayerWeights& l : model.weights().layers) {
    weights += sum({&l.hc_attn.fn, &l.hc_ffn.fn, &l.moe.gate, &l.engram.wkv});
    weights += sum({&l.attention.wq_a, &l.attention.wq_b, &l.attention.wkv, &l.attention.wo_a,
                    &l.attention.wo_b});
    weights += sum({&l.compressor.wkv, &l.compressor.wgate, &l.compressor.index_wk});
    weights += sum({&l.indexer.wq_b, &l.indexer.weights_proj});
    weights += model.config().num_experts_per_tok * expert(l.moe.experts[0]) + expert(l.moe.shared);
  }
  return {.token_flops = 2 * weights, .prompt_flops = 2 * sum({&model.weights().head})};
}

Result<WeightTraffic> weight_traffic(const Model& model) {
  ThreadTeam team(1);
  const auto backend = make_reference_backend(team);  // only for the formats of the caches
  TRY(const auto layout, StateLayout::build(model.config(), model.topology(), *backend));
  WeightTraffic traffic;
  for (const TensorKind& kind : inspect_model(model, layout).kinds) {
    if (kind.name == "routed experts") {
      traffic.expert_bytes = kind.bytes;
      traffic.expert_share = static_cast<double>(kind.read_bytes) / static_cast<double>(kind.bytes);
    } else if (kind.read_bytes < kind.bytes) {
      traffic.row_bytes += kind.read_bytes;
    } else {
      traffic.once_bytes += kind.read_bytes;
    }
  }
  return traffic;
}

}  // namespace tidemill::cli
