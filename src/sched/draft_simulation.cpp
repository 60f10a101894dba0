#include "sched/draft_simulation.h"

#include <cmath>
#include <random>
#include <vector>

namespace tidemill {
namespace {

constexpr double kProse = 1.0;  // logits of the first draft's mean confidence
constexpr double kCode = 2.4;
constexpr double kLevel = 0.4;  // standard deviations of the logit
constexpr double kDrift = 0.5;
constexpr double kOwn = 0.6;
constexpr double kMemory = 0.7;  // of the drift, per step
constexpr double kDecay = 0.05;

// Same numbers on every platform, unlike the distributions of <random>.
class Noise {
 public:
  explicit Noise(uint64_t seed) : engine_(seed) {}
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }
  // Mean 0, variance 1, nearly normal: the sum of four uniforms, of 16 bits each.
  double normal() {
    const uint64_t bits = engine_();
    const uint64_t sum =
        (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    return (static_cast<double>(sum) * 0x1p-16 - 2.0) * std::sqrt(3.0);
  }

 private:
  std::mt19937_64 engine_;
};

// One place of the batch and the requests that take it one after the other.
class Slot {
 public:
  Slot(const DraftSimulation& options, int64_t index)
      : options_(options),
        index_(index),
        noise_(options.seed * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(index)) {
    start();
  }

  RequestId request() const {
    return static_cast<RequestId>(generation_ * options_.concurrency + index_);
  }

  // The drafts made at the end of a step. Returns false if the request ended with the step: there
  // are none, and another request has the slot.
  bool draft(std::span<float> confidence, std::span<double> real) {
    const bool ends = noise_.uniform() * options_.steps_per_request < 1.0;
    drift_ = kMemory * drift_ + std::sqrt(1.0 - kMemory * kMemory) * kDrift * noise_.normal();
    for (size_t j = 0; j < confidence.size(); ++j) {
      const double logit =
          level_ + drift_ + kOwn * noise_.normal() - kDecay * static_cast<double>(j);
      const double p = 1.0 / (1.0 + std::exp(-logit));
      confidence[j] = static_cast<float>(p);
      real[j] = p + (2.0 * noise_.uniform() - 1.0) * p * (1.0 - p);
    }
    if (ends) {
      ++generation_;
      start();
    }
    return !ends;
  }

 private:
  void start() {
    level_ = (noise_.uniform() < 0.5 ? kProse : kCode) + kLevel * noise_.normal();
    drift_ = kDrift * noise_.normal();
  }

  const DraftSimulation& options_;
  int64_t index_;
  int64_t generation_ = 0;
  Noise noise_;
  double level_ = 0.0;
  double drift_ = 0.0;
};

Status check(const DraftSimulation& options) {
  if (options.concurrency < 1 || options.concurrency > 1 << 16 || options.steps < 1 ||
      options.draft_length < 1 || options.draft_length > 64) {
    return fail(ErrorCode::kInvalidArgument,
                "a simulation of {} requests, {} steps and {} drafts; at least 1 of each, at most "
                "{} requests and 64 drafts",
                options.concurrency, options.steps, options.draft_length, 1 << 16);
  }
  if (!(options.steps_per_request >= 1.0) || !(options.sampler_ms >= 0.0) ||
      !(options.drafter_share >= 0.0)) {
    return fail(ErrorCode::kInvalidArgument,
                "a simulation with {} steps a request, {} ms of sampling and a drafter of {} of a "
                "step; at least 1, 0 and 0",
                options.steps_per_request, options.sampler_ms, options.drafter_share);
  }
  return {};
}

}  // namespace

Result<DraftThroughput> simulate_drafts(const CostCurve& curve, const DraftPolicy& policy,
                                        const DraftSimulation& options) {
  CHECK_OK(check(options));
  const auto count = static_cast<size_t>(options.concurrency);
  const auto n = static_cast<size_t>(options.draft_length);
  const bool drafting = policy.mode != DraftMode::kOff;
  const double after_forward =
      options.sampler_ms +
      (drafting ? options.drafter_share * curve.ms(options.concurrency * options.draft_length)
                : 0.0);
  DraftScheduler scheduler(policy, options.draft_length, DraftCost(curve, after_forward));

  std::vector<Slot> slots;
  slots.reserve(count);
  for (size_t i = 0; i < count; ++i) slots.emplace_back(options, static_cast<int64_t>(i));

  // Made at the end of the last step, verified in the next: ids of those that have drafts in
  // `drafters`; a slot whose request is new has limit 0.
  std::vector<RequestId> requests(count), drafters;
  std::vector<int32_t> limits(count, 0), lengths(count);
  std::vector<float> confidence(count * n, 1.0f), kept;
  std::vector<double> real(count * n, 0.0);
  for (size_t i = 0; i < count; ++i) requests[i] = slots[i].request();

  double tokens = 0.0, ms = 0.0, drafts = 0.0;
  const auto report = [&](int64_t step) { return scheduler.processed(step, drafters, kept); };
  const bool waits = policy.mode == DraftMode::kEarlyStop;
  for (int64_t step = 0; step < options.steps; ++step) {
    // Here `drafters` and `kept` still are those of the end of step - 1.
    if (waits && step > 0) CHECK_OK(report(step - 1));
    TRY(DraftPlan plan,
        scheduler.plan(step, {.requests = requests, .limits = limits, .max_drafts = INT64_MAX}));
    if (!waits && step > 0) CHECK_OK(report(step - 1));

    const DraftBatch batch{.confidence = confidence,
                           .limits = limits,
                           .requests = options.concurrency,
                           .draft_length = options.draft_length};
    if (policy.mode == DraftMode::kPublished) {
      allocate_drafts(batch, plan.drafts, lengths);
    } else {
      lengths = plan.lengths;
    }

    for (size_t i = 0; i < count; ++i) {
      double survives = 1.0;
      tokens += 1.0;
      for (size_t j = 0; j < static_cast<size_t>(lengths[i]); ++j) {
        survives *= real[i * n + j];
        tokens += survives;
      }
    }
    const int64_t rows = options.concurrency + plan.drafts;
    ms += curve.ms(rows) + after_forward;
    drafts += static_cast<double>(plan.drafts);
    scheduler.cost().record_forward(rows, curve.ms(rows));
    scheduler.cost().record_sampler(after_forward);

    drafters.clear();
    kept.clear();
    for (size_t i = 0; i < count; ++i) {
      const std::span<float> made = std::span(confidence).subspan(i * n, n);
      limits[i] =
          slots[i].draft(made, std::span(real).subspan(i * n, n)) ? options.draft_length : 0;
      requests[i] = slots[i].request();
      if (limits[i] == 0) continue;
      drafters.push_back(requests[i]);
      kept.insert(kept.end(), made.begin(), made.end());
    }
  }

  const double request_steps = static_cast<double>(options.concurrency * options.steps);
  return DraftThroughput{.tokens_per_second = 1000.0 * tokens / ms,
                         .tokens_per_step = tokens / request_steps,
                         .drafts_per_request = drafts / request_steps,
                         .step_ms = ms / static_cast<double>(options.steps)};
}

}  // namespace tidemill
