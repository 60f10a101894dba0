#include "sched/draft_confidences.h"

#include <algorithm>

namespace tidemill {

int64_t DraftConfidences::Generation::find(RequestId request) const {
  const auto found =
      std::lower_bound(rows.begin(), rows.end(), request,
                       [](const Row& row, RequestId id) { return row.request < id; });
  return found != rows.end() && found->request == request ? found->index : -1;
}

Status DraftConfidences::store(int64_t step, std::span<const RequestId> requests,
                               std::span<const float> confidence) {
  if (step != processed_ + 1) {
    return fail(ErrorCode::kInternal, "confidences of step {} came after those of step {}", step,
                processed_);
  }
  if (confidence.size() != requests.size() * static_cast<size_t>(draft_length_)) {
    return fail(ErrorCode::kInternal, "step {} has {} confidences for {} requests of {} drafts",
                step, confidence.size(), requests.size(), draft_length_);
  }
  std::vector<Row> rows(requests.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = {requests[i], static_cast<int64_t>(i)};
  std::sort(rows.begin(), rows.end(),
            [](const Row& x, const Row& y) { return x.request < y.request; });
  const auto twice = std::adjacent_find(
      rows.begin(), rows.end(), [](const Row& x, const Row& y) { return x.request == y.request; });
  if (twice != rows.end()) {
    return fail(ErrorCode::kInternal, "step {} has confidences of request {} twice", step,
                twice->request);
  }

  const Generation& before = generations_[(step & 1) ^ 1];
  Generation& made = generations_[step & 1];
  made.rows = std::move(rows);
  made.confidence.resize(confidence.size());
  std::transform(confidence.begin(), confidence.end(), made.confidence.begin(),
                 [](float c) { return c > 0.0f ? std::min(c, 1.0f) : 0.0f; });
  made.smoothed = made.confidence;
  for (const Row& row : made.rows) {
    const int64_t old = before.find(row.request);
    if (old < 0) continue;
    for (int32_t j = 0; j < draft_length_; ++j) {
      float& value = made.smoothed[row.index * draft_length_ + j];
      value += smoothing_ * (before.smoothed[old * draft_length_ + j] - value);
    }
  }
  processed_ = step;
  return {};
}

Status DraftConfidences::read(int64_t step, int64_t made, bool smoothed,
                              std::span<const RequestId> requests, std::span<float> out) const {
  if (made > processed_) {
    return fail(ErrorCode::kInternal,
                "step {} is planned with confidences of step {}, but the newest are of step {}",
                step, made, processed_);
  }
  if (step <= processed_) {
    return fail(ErrorCode::kInternal, "step {} is planned after step {} was processed", step,
                processed_);
  }
  if (out.size() != requests.size() * static_cast<size_t>(draft_length_)) {
    return fail(ErrorCode::kInternal, "room for {} confidences of {} requests of {} drafts",
                out.size(), requests.size(), draft_length_);
  }
  static const Generation kNone;  // before the first step
  const Generation& from = made < 0 ? kNone : generation(made);
  const std::vector<float>& values = smoothed ? from.smoothed : from.confidence;
  for (size_t i = 0; i < requests.size(); ++i) {
    const int64_t row = from.find(requests[i]);
    float* target = out.data() + i * static_cast<size_t>(draft_length_);
    if (row < 0) {
      std::fill_n(target, draft_length_, 1.0f);
    } else {
      std::copy_n(values.data() + row * draft_length_, draft_length_, target);
    }
  }
  return {};
}

Status DraftConfidences::lagged(int64_t step, std::span<const RequestId> requests,
                                std::span<float> out) const {
  return read(step, step - 2, false, requests, out);
}

Status DraftConfidences::lagged_smoothed(int64_t step, std::span<const RequestId> requests,
                                         std::span<float> out) const {
  return read(step, step - 2, true, requests, out);
}

Status DraftConfidences::fresh(int64_t step, std::span<const RequestId> requests,
                               std::span<float> out) const {
  return read(step, step - 1, false, requests, out);
}

}  // namespace tidemill
