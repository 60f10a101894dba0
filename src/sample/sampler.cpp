#include "sample/sampler.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <numeric>

#include "sample/log_probabilities.h"

namespace tidemill {
namespace {

constexpr size_t kBins = 4096;

}  // namespace

float lowest_scaled(const SamplingParams& params) {
  constexpr float kLowest = -104.0f;  // exp(x) rounds to 0 in float32 from here on
  return params.min_p > 0.0f ? std::max(std::log(params.min_p), kLowest) : kLowest;
}

double Distribution::probability(int32_t token) const {
  const auto place = std::lower_bound(ids.begin(), ids.end(), token);
  if (place == ids.end() || *place != token) return 0.0;
  return static_cast<double>(weights[place - ids.begin()]) / total;
}

int32_t Distribution::draw(const NoiseKey& key) const {
  return tidemill::draw(key, ids, [this](size_t i) { return static_cast<double>(weights[i]); });
}

Sampler::Sampler(int64_t vocabulary)
    : vocabulary_(vocabulary),
      edited_(vocabulary),
      ids_(vocabulary),
      scaled_(vocabulary),
      weights_(vocabulary),
      bins_(kBins) {
  assert(vocabulary > 0 && vocabulary <= std::numeric_limits<int32_t>::max());
  border_.reserve(vocabulary);
}

Result<Distribution> Sampler::distribution(std::span<const float> logits,
                                           const SamplingParams& params,
                                           const TokenHistory& history, int64_t position) {
  assert(std::ssize(logits) == vocabulary_);
  if (edits_logits(params)) {
    std::copy(logits.begin(), logits.end(), edited_.begin());
    edit_logits(edited_, params, history);
    logits = edited_;
  }
  TRY(const float largest, largest_logit(logits, position));

  if (params.greedy()) {
    count_ = 1;
    ids_[0] =
        static_cast<int32_t>(std::find(logits.begin(), logits.end(), largest) - logits.begin());
    weights_[0] = 1.0f;
    return remaining();
  }
  collect(logits, largest, params);
  if (params.top_k > 0) keep_likeliest(params.top_k, Measure::kCount);
  for (size_t i = 0; i < count_; ++i) weights_[i] = std::exp(scaled_[i]);
  if (params.top_p < 1.0f) keep_likeliest(params.top_p * remaining().total, Measure::kWeight);
  return remaining();
}

Distribution Sampler::remaining() const {
  return {{ids_.data(), count_},
          {weights_.data(), count_},
          std::accumulate(weights_.begin(), weights_.begin() + count_, 0.0)};
}

Result<int32_t> Sampler::sample(std::span<const float> logits, const SamplingParams& params,
                                const TokenHistory& history, int64_t position) {
  TRY(const Distribution p, distribution(logits, params, history, position));
  return p.draw({params.seed, position, NoiseStream::kTarget});
}

Result<int32_t> Sampler::draft(std::span<const float> logits, float temperature,
                               const NoiseKey& key, std::span<float> q) {
  SamplingParams params;
  params.temperature = temperature;
  TRY(const Distribution p, distribution(logits, params, {}, key.position));
  if (!q.empty()) {
    assert(q.size() == logits.size());
    std::fill(q.begin(), q.end(), 0.0f);
    for (size_t i = 0; i < p.ids.size(); ++i) {
      q[p.ids[i]] = static_cast<float>(p.weights[i] / p.total);
    }
  }
  return p.draw(key);
}

// All tokens above the floor of min-p.
void Sampler::collect(std::span<const float> logits, float largest, const SamplingParams& params) {
  const float floor = lowest_scaled(params);
  count_ = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float scaled = (logits[i] - largest) / params.temperature;
    ids_[count_] = static_cast<int32_t>(i);
    scaled_[count_] = scaled;
    // Without a branch: the next token overwrites one that is out.
    count_ += static_cast<size_t>(scaled >= floor);
  }
}

// Keeps the shortest list of likeliest tokens whose measures add up to at least `target`.
void Sampler::keep_likeliest(double target, Measure measure) {
  if (measure == Measure::kCount && target >= static_cast<double>(count_)) return;
  const size_t last = last_kept(target, measure);
  const float last_scaled = scaled_[last];
  size_t kept = 0;
  for (size_t i = 0; i < count_; ++i) {
    const bool stays = scaled_[i] > last_scaled || (scaled_[i] == last_scaled && i <= last);
    ids_[kept] = ids_[i];
    scaled_[kept] = scaled_[i];
    weights_[kept] = weights_[i];
    kept += static_cast<size_t>(stays);
  }
  count_ = kept;
}

// Index of the least likely token of that list. Linear time for rows that are spread out: the
// measures go into bins by likelihood, and only the bin in which their sum reaches the target is
// sorted.
size_t Sampler::last_kept(double target, Measure measure) {
  const auto measure_of = [&](size_t i) {
    return measure == Measure::kWeight ? static_cast<double>(weights_[i]) : 1.0;
  };
  // The likeliest token is at 0, so the bins divide [lowest, 0].
  const std::span<double> bins(bins_.data(), std::min(kBins, count_));
  const double lowest = *std::min_element(scaled_.begin(), scaled_.begin() + count_);
  const double bins_per_nat = lowest < 0.0 ? static_cast<double>(bins.size() - 1) / -lowest : 0.0;
  const auto bin_of = [&](size_t i) { return static_cast<size_t>(scaled_[i] * -bins_per_nat); };

  std::fill(bins.begin(), bins.end(), 0.0);
  for (size_t i = 0; i < count_; ++i) bins[bin_of(i)] += measure_of(i);
  // Rounding must not put a top_p near 1 out of reach.
  target = std::min(target, std::accumulate(bins.begin(), bins.end(), 0.0));
  size_t crossing = 0;
  double sum = 0.0;
  while (sum + bins[crossing] < target) sum += bins[crossing++];

  border_.clear();
  for (size_t i = 0; i < count_; ++i) {
    if (bin_of(i) == crossing) border_.push_back(static_cast<uint32_t>(i));
  }
  std::sort(border_.begin(), border_.end(), [&](uint32_t a, uint32_t b) {
    return scaled_[a] != scaled_[b] ? scaled_[a] > scaled_[b] : a < b;
  });
  for (const uint32_t i : border_) {
    sum += measure_of(i);
    if (sum >= target) return i;
  }
  return border_.back();
}

}  // namespace tidemill
