// Drafts of some requests behind a step: one pass, then position by position.
#include <algorithm>

#include "engine/device.h"
#include "sample/drawn.h"

namespace tidemill {

Status Device::draft_group(std::span<DeviceRequest* const> group) {
  std::vector<Forward::DraftItem> items;
  std::vector<int32_t> previous;
  std::vector<int64_t> counts;
  int64_t longest = 0;
  for (DeviceRequest* request : group) {
    items.push_back({.sequence = &request->sequence, .anchor = request->tokens.back()});
    previous.push_back(request->tokens.back());
    counts.push_back(std::min(options_.draft_length, request->drafts_wanted()));
    longest = std::max(longest, counts.back());
    request->drafted_at = step_;
    request->drafts.clear();
    request->confidence.clear();
    request->draft_odds.clear();
  }
  const bool rejection = options_.verification == Verification::kRejection;
  const bool on_backend =
      !rejection &&
      (!runner_.backend().host_memory() ||
       std::all_of(group.begin(), group.end(), [](const auto* r) { return r->sampling.greedy(); }));
  const auto width = static_cast<size_t>(vocabulary_);
  CHECK_OK(runner_.forward().draft(items));
  for (int64_t k = 0; k < longest; ++k) {
    const auto key_of = [&](const DeviceRequest& request) {
      return NoiseKey{.seed = request.sampling.seed,
                      .position = std::ssize(request.tokens) + k,
                      .stream = rejection ? NoiseStream::kDraft : NoiseStream::kTarget};
    };
    std::vector<DrawRow> draws;
    for (const DeviceRequest* request : group) {
      if (on_backend) draws.push_back(draft_row(request->sampling.temperature, key_of(*request)));
    }
    TRY(const Forward::DraftRow row, runner_.forward().draft_logits(k, previous, draws));
    for (size_t i = 0; i < group.size(); ++i) {
      DeviceRequest& request = *group[i];
      if (k >= counts[i]) continue;
      std::optional<int32_t> drafted;
      if (on_backend) drafted = drawn_token(draws[i], row.drawn[i]);
      if (!drafted) {
        std::span<float> odds;
        if (rejection) {
          request.draft_odds.resize(request.draft_odds.size() + width);
          odds = std::span(request.draft_odds).last(width);
        }
        TRY(const Rows logits, runner_.forward().logits(static_cast<int64_t>(i), 1));
        const auto id = sampler_.draft({logits.f32(0), width}, request.sampling.temperature,
                                       key_of(request), odds);
        if (id) drafted = *id;
      }
      if (!drafted) {  // logits that are no numbers: this request goes on without drafts
        counts[i] = 0;
        request.drafts.clear();
        request.confidence.clear();
        request.draft_odds.clear();
        continue;
      }
      previous[i] = *drafted;
      request.drafts.push_back(previous[i]);
      request.confidence.push_back(
          options_.temperatures.confidence(row.confidence[i], static_cast<int32_t>(k)));
    }
  }
  return {};
}

}  // namespace tidemill
