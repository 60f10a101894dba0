#include "engine/step_profile.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/clock.h"

namespace tidemill {
namespace {

constexpr int kRuns = 5;  // of each size; their median counts

Status run(ModelRunner& runner, std::span<const StepItem> items) {
  const auto output = runner.forward().run(items);
  if (!output) return tl::unexpected(output.error());
  return {};
}

// Milliseconds of a step of `rows`, `width` of each sequence at most.
Result<double> time_step(ModelRunner& runner, std::vector<Sequence>& sequences, int64_t rows,
                         int64_t width) {
  const std::vector<int32_t> tokens(static_cast<size_t>(width), 0);
  std::array<double, kRuns> ms{};
  for (double& value : ms) {
    std::vector<StepItem> items;
    for (int64_t left = rows, i = 0; left > 0; ++i) {
      const int64_t count = std::min(left, width);
      items.push_back({.sequence = &sequences[static_cast<size_t>(i)],
                       .tokens = std::span(tokens).first(static_cast<size_t>(count)),
                       .logits = Logits::kAll});
      left -= count;
    }
    const Clock::time_point begin = Clock::now();
    CHECK_OK(run(runner, items));
    value = 1e3 * seconds_since(begin);
    for (const StepItem& item : items) CHECK_OK(runner.pool().truncate(*item.sequence, 1));
  }
  std::nth_element(ms.begin(), ms.begin() + kRuns / 2, ms.end());
  return ms[kRuns / 2];
}

Result<std::vector<CostPoint>> measure(ModelRunner& runner, std::vector<Sequence>& sequences) {
  const StatePool& pool = runner.pool();
  const int64_t width =
      std::min(1 + runner.model().config().dspark_block_size, pool.layout().rollback);
  const auto most =
      std::min(runner.forward().max_tokens(), width * static_cast<int64_t>(sequences.size()));
  const std::vector<int32_t> first(1, 0);
  for (Sequence& sequence : sequences) {
    const StepItem item{&sequence, first, Logits::kNone};
    CHECK_OK(run(runner, {&item, 1}));
  }
  std::vector<CostPoint> points;
  for (int64_t rows = 1;; rows = std::min(rows * 2, most)) {
    TRY(const double ms, time_step(runner, sequences, rows, width));
    points.push_back({rows, ms});
    if (rows == most) return points;
  }
}

}  // namespace

Result<CostCurve> profile_steps(ModelRunner& runner) {
  StatePool& pool = runner.pool();
  const int64_t count = std::min(pool.free_slots(), pool.free_blocks());
  std::vector<Sequence> sequences;
  for (int64_t i = 0; i < count; ++i) {
    TRY(Sequence sequence, pool.acquire());
    sequences.push_back(std::move(sequence));
  }
  auto points = measure(runner, sequences);
  for (Sequence& sequence : sequences) pool.release(sequence);
  if (!points) return tl::unexpected(std::move(points).error());
  return CostCurve::create(std::move(*points), 0);
}

}  // namespace tidemill
