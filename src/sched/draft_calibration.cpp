#include "sched/draft_calibration.h"

#include <algorithm>
#include <cmath>

#include "base/escape.h"

namespace tidemill {
namespace {

constexpr int32_t kGrid = 49;  // temperatures of a fit: 2^-3 to 2^3, eight to an octave

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// NaN counts as 0.
double clamp_share(double p) { return p > 0.0 ? std::min(p, 1.0) : 0.0; }

double scaled(float z, double temperature) {
  return clamp_share(sigmoid(static_cast<double>(z) / temperature));
}

}  // namespace

Result<DraftTemperatures> DraftTemperatures::create(std::span<const double> values,
                                                    int32_t draft_length) {
  if (values.size() != 1 && values.size() != static_cast<size_t>(draft_length)) {
    return fail(ErrorCode::kInvalidArgument,
                "{} temperatures of draft confidences; give 1 for all positions or exactly {}",
                values.size(), draft_length);
  }
  for (const double value : values) {
    if (!std::isfinite(value) || value <= 0.0) {
      return fail(ErrorCode::kInvalidArgument,
                  "a temperature of draft confidences is {}; it must be above 0", value);
    }
  }
  std::vector<double> all(values.begin(), values.end());
  all.resize(static_cast<size_t>(draft_length), values[0]);
  return DraftTemperatures(std::move(all));
}

float DraftTemperatures::confidence(float z, int32_t position) const {
  return static_cast<float>(scaled(z, values_[position]));
}

Result<std::vector<double>> fit_temperatures(std::span<const DraftRecord> records,
                                             int32_t draft_length) {
  for (const DraftRecord& record : records) {
    if (record.z.size() != static_cast<size_t>(draft_length) || record.verified < 0 ||
        record.verified > draft_length || record.accepted < 0 ||
        record.accepted > record.verified) {
      return fail(ErrorCode::kInvalidArgument,
                  "a draft record of {} logits, {} verified and {} accepted drafts; the draft "
                  "length is {}",
                  record.z.size(), record.verified, record.accepted, draft_length);
    }
  }
  std::vector<double> temperatures(static_cast<size_t>(draft_length), 1.0);
  // Of each record the product of the confidences before the position at hand.
  std::vector<double> prefix(records.size(), 1.0);
  for (int32_t j = 0; j < draft_length; ++j) {
    const auto count = std::count_if(records.begin(), records.end(),
                                     [&](const DraftRecord& r) { return r.verified > j; });
    if (count >= kNeededForFit) {
      double least = INFINITY;
      // Outwards from a temperature of 1, so that the first of equals is the nearest to it.
      for (int32_t i = 0; i < kGrid; ++i) {
        const int32_t eighths = i % 2 == 0 ? -i / 2 : (i + 1) / 2;
        const double temperature = std::exp2(eighths / 8.0);
        CalibrationBins bins;
        for (size_t r = 0; r < records.size(); ++r) {
          if (records[r].verified <= j) continue;
          bins.add(prefix[r] * scaled(records[r].z[j], temperature), records[r].accepted > j);
        }
        if (bins.error() < least) {
          least = bins.error();
          temperatures[j] = temperature;
        }
      }
    }
    for (size_t r = 0; r < records.size(); ++r) {
      prefix[r] *= scaled(records[r].z[j], temperatures[j]);
    }
  }
  return temperatures;
}

void CalibrationBins::add(double confidence, bool accepted) {
  const double p = clamp_share(confidence);
  Bin& bin =
      bins[std::min(static_cast<size_t>(p * static_cast<double>(bins.size())), bins.size() - 1)];
  ++bin.count;
  bin.accepted += accepted;
  bin.predicted += p;
}

int64_t CalibrationBins::count() const {
  int64_t sum = 0;
  for (const Bin& bin : bins) sum += bin.count;
  return sum;
}

double CalibrationBins::predicted() const {
  double sum = 0.0;
  for (const Bin& bin : bins) sum += bin.predicted;
  return sum / static_cast<double>(std::max<int64_t>(count(), 1));
}

double CalibrationBins::accepted() const {
  double sum = 0.0;
  for (const Bin& bin : bins) sum += static_cast<double>(bin.accepted);
  return sum / static_cast<double>(std::max<int64_t>(count(), 1));
}

double CalibrationBins::error() const {
  double sum = 0.0;
  for (const Bin& bin : bins) sum += std::abs(bin.predicted - static_cast<double>(bin.accepted));
  return sum / static_cast<double>(std::max<int64_t>(count(), 1));
}

CalibrationReport::CalibrationReport(int32_t draft_length)
    : draft_length_(draft_length), all_(static_cast<size_t>(draft_length)) {}

void CalibrationReport::add(std::string_view tag, std::span<const float> confidence,
                            int32_t verified, int32_t accepted) {
  if (tag.size() > kMaxTagBytes) tag = kOtherTag;
  auto found = by_tag_.find(tag);
  if (found == by_tag_.end()) {
    if (by_tag_.size() >= kMaxTags) tag = kOtherTag;
    found = by_tag_.try_emplace(std::string(tag), all_.size()).first;
  }
  verified =
      std::clamp(verified, 0, static_cast<int32_t>(std::min(confidence.size(), all_.size())));
  accepted = std::clamp(accepted, 0, verified);
  const int32_t reached = std::min(accepted + 1, verified);
  for (int32_t j = 0; j < reached; ++j) {
    all_[j].add(confidence[j], j < accepted);
    found->second[j].add(confidence[j], j < accepted);
  }
}

std::vector<CalibrationReport::Tag> CalibrationReport::tags() const {
  std::vector<Tag> tags = {{std::string(kAllTag), all_}};
  for (const auto& [name, positions] : by_tag_) tags.push_back({name, positions});
  return tags;
}

std::string CalibrationReport::text() const {
  std::string lines = "position count predicted accepted error tag\n";
  for (const Tag& tag : tags()) {
    for (int32_t j = 0; j < draft_length_; ++j) {
      const CalibrationBins& bins = tag.positions[j];
      lines += fmt::format("{} {} {:.4f} {:.4f} {:.4f} {}\n", j + 1, bins.count(), bins.predicted(),
                           bins.accepted(), bins.error(), escape_control(tag.name));
    }
  }
  return lines;
}

}  // namespace tidemill
