// The cpu backend: vector kernels for the operations that take time, the reference for the rest.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "ops/cpu_kernels.h"
#include "ops/moe/cpu_assignments.h"
#include "ops/reference_backend.h"
#include "ops/units.h"

namespace tidemill {

// Memory that grows to what the largest call needed and is then reused; aligned to 64 bytes.
class Scratch {
 public:
  float* floats(int64_t n);
  std::byte* bytes(int64_t n) { return reinterpret_cast<std::byte*>(floats((n + 3) / 4)); }

 private:
  struct Free {
    void operator()(float* p) const;
  };
  std::unique_ptr<float[], Free> memory_;
  int64_t size_ = 0;
};

class CpuBackend : public ReferenceBackend {
 public:
  CpuBackend(ThreadTeam& team, const CpuKernels& kernels)
      : ReferenceBackend(team, Rounding{}, kernels.order), kernels_(kernels) {}

  std::string_view name() const override { return kernels_.name; }
  void linear(const LinearArgs&) override;
  void rms_norm(const RmsNormArgs&) override;
  void rope(const RopeArgs&) override;
  void hc_mix(const HcMixArgs&) override;
  void collapse_norm(const CollapseNormArgs&) override;
  void expand(const ExpandArgs&) override;
  void index_select(const IndexSelectArgs&) override;
  void attend(const AttendArgs&) override;
  void route(const RouteArgs&) override;
  void experts(const ExpertsArgs&) override;
  void engram_gate(const EngramGateArgs&) override;

 private:
  // Whether matmul reads tiles of prepared rows (pack).
  bool reads_tiles() const { return kernels_.pack != nullptr; }
  // Bytes of a prepared row: rows begin in different cache sets.
  int64_t prepared_stride(int64_t width) const {
    return ((width * kernels_.activation_bytes + 63) / 64 | 1) * 64;
  }
  // Rows of x, or of Q8(x), as matmul reads them, or pack before it.
  TokenRows prepare(const Rows& x, bool quantise, Scratch& scratch, Activations& kind);
  // The same as matmul reads it, where it reads tiles.
  TokenRows prepare_tiles(const Rows& x, bool quantise, Activations& kind);
  // The rows of each group of tokens, which follow one another in `rows`, as matmul reads them:
  // tokens [begin[g], begin[g + 1]) are group g.
  TokenRows pack(const TokenRows& rows, int64_t width, std::span<const int64_t> begin);
  // body(unit, rank) for every unit; `bytes` of work in all, on the calling thread alone where
  // waking the team costs more.
  template <typename Body>
  void for_each_unit(int64_t units, int64_t bytes, Body&& body) {
    for_each_unit(1, units, bytes, std::forward<Body>(body));
  }
  // The same for groups of units: share_units().
  template <typename Body>
  void for_each_unit(int64_t groups, int64_t group_units, int64_t bytes, Body&& body) {
    const int64_t units = groups * group_units;
    // About 3 us of one core; a run of the team costs 1 to 2.
    constexpr int64_t kWorthATeam = 48 << 10;
    if (bytes < kWorthATeam || units == 1) {
      for (int64_t unit = 0; unit < units; ++unit) body(unit, 0);
      return;
    }
    share_units(context_.team, next_unit_, groups, group_units, body);
  }

  // body(row) for every row of an activation, `bytes` of work each.
  template <typename Body>
  void for_each_row(int64_t rows, int64_t bytes, Body&& body) {
    constexpr int64_t kRowsPerUnit = 8;
    for_each_unit((rows + kRowsPerUnit - 1) / kRowsPerUnit, rows * bytes, [&](int64_t unit, int) {
      const int64_t end = std::min(rows, (unit + 1) * kRowsPerUnit);
      for (int64_t row = unit * kRowsPerUnit; row < end; ++row) body(row);
    });
  }

  const CpuKernels& kernels_;
  NextUnits next_unit_;
  Assignments assignments_;
  Scratch x_;
  Scratch packed_;
  Scratch hidden_;
  Scratch thread_;  // one part per thread
};

}  // namespace tidemill
