// From a step's logits, or what the backend drew from them, to tokens that are kept.
#include <algorithm>

#include "engine/device_rows.h"
#include "sample/drawn.h"
#include "sample/log_probabilities.h"
#include "sample/verify.h"

namespace tidemill {

// Are the target's tokens all that the host needs to know of the logits?
bool Device::draws_on_backend(const DeviceRequest& request) const {
  const SamplingParams& sampling = request.sampling;
  return options_.verification == Verification::kKeyed && !edits_logits(sampling) &&
         !sampling.logprobs && !request.matcher;
}

// How the backend draws from the step's rows of logits; empty: it does not, the host looks at all
// of them. Where it can read them in place, this is worth it only if the likeliest will do.
std::vector<DrawRow> Device::draws_of(std::span<Row* const> rows,
                                      std::span<const StepItem> items) const {
  std::vector<DrawRow> draws;
  bool some = false;
  bool all_greedy = true;
  for (size_t i = 0; i < rows.size(); ++i) {
    const DeviceRequest& request = *rows[i]->request;
    const bool here = draws_on_backend(request);
    for (int64_t j = 0; j < rows_of_logits(items[i]); ++j) {
      const int64_t position = std::ssize(request.tokens) + j;
      // Nobody asks what the others' would be.
      draws.push_back(here ? draw_row(request.sampling, {request.sampling.seed, position})
                           : DrawRow{});
      some |= here;
      all_greedy &= here && request.sampling.greedy();
    }
  }
  if (!(runner_.backend().host_memory() ? all_greedy : some)) draws.clear();
  return draws;
}

// Draws and verifies; leaves the state at the last token but one.
Status Device::sample(Row& row, const Computed& computed) {
  DeviceRequest& request = *row.request;
  const auto width = static_cast<size_t>(vocabulary_);
  const auto position = static_cast<int64_t>(request.tokens.size());
  const auto logits_of = [&](int64_t first, int64_t count) -> Result<std::span<float>> {
    TRY(const Rows rows, runner_.forward().logits(first, count));
    return std::span(rows.f32(0), static_cast<size_t>(count) * width);
  };
  std::span<float> logits;
  if (computed.draws.empty()) {
    TRY(logits, logits_of(computed.first, computed.count));
  }
  std::span<const int32_t> drafts;
  if (row.item->plan.decode) drafts = std::span<const int32_t>(row.input).subspan(1);
  if (request.matcher) {
    TRY(const int64_t masked, mask_rows(*request.matcher, drafts, logits, mask_));
    // Rejection has to see the first draft that may not follow: its odds are part of the residual,
    // and with a probability of 0 it cannot stand.
    const bool sees_one_more = options_.verification == Verification::kRejection;
    const auto most = static_cast<size_t>(sees_one_more ? masked : masked - 1);
    drafts = drafts.first(std::min(most, drafts.size()));
  }
  const auto token = [&](int64_t j) -> Result<int32_t> {
    const auto at = static_cast<size_t>(j);
    if (const auto id = drawn_token(computed.draws[at], computed.drawn[at])) return *id;
    TRY(const auto row_logits, logits_of(computed.first + j, 1));
    return sampler_.sample(row_logits, request.sampling, request.history, position + j);
  };
  const auto target = logits.first(logits.empty() ? 0 : (drafts.size() + 1) * width);
  Verdict verdict;
  if (logits.empty()) {
    TRY(verdict, verify_keyed(drafts, token));
  } else if (options_.verification == Verification::kRejection) {
    const auto odds = std::span<const float>(request.draft_odds).first(drafts.size() * width);
    TRY(verdict, verify_rejection(sampler_, target, drafts, odds, request.sampling, request.history,
                                  position));
  } else {
    TRY(verdict,
        verify_keyed(sampler_, target, drafts, request.sampling, request.history, position));
  }
  row.out->accepted = verdict.accepted;
  std::vector<int32_t> drawn(drafts.begin(), drafts.begin() + verdict.accepted);
  drawn.push_back(verdict.next);
  CHECK_OK(keep(row, drawn, logits));
  request.drafts.clear();
  const int64_t known = static_cast<int64_t>(request.tokens.size()) - 1;
  if (request.sequence.length() > known && !request.ended) request.sequence.rewind(known);
  return {};
}

// Adds what was drawn to the answer, up to its end.
Status Device::keep(Row& row, std::span<const int32_t> drawn, std::span<const float> logits) {
  DeviceRequest& request = *row.request;
  const auto width = static_cast<size_t>(vocabulary_);
  for (size_t j = 0; j < drawn.size(); ++j) {
    const int32_t id = drawn[j];
    if (request.matcher && !request.matcher->accept(id)) {
      return fail(ErrorCode::kInternal, "token {} was drawn against the grammar", id);
    }
    // A constraint that is complete ends the answer also where end-of-sequence ids do not.
    const bool complete = request.matcher && request.matcher->is_terminated();
    if (complete || std::binary_search(request.ends.begin(), request.ends.end(), id)) {
      row.out->finish = FinishReason::kStop;
      request.ended = true;
      return {};
    }
    if (request.sampling.logprobs) {
      CHECK_OK(log_probabilities(logits.subspan(j * width, width), id, *request.sampling.logprobs,
                                 static_cast<int64_t>(request.tokens.size()),
                                 row.out->logprobs.emplace_back()));
    }
    if (request.sampling.uses_history()) request.history.add_output(id);
    request.tokens.push_back(id);
    row.out->outputs.push_back(id);
    if (request.outputs_left() == 0) {
      row.out->finish = FinishReason::kLength;
      request.ended = true;
      return {};
    }
  }
  return {};
}

}  // namespace tidemill
