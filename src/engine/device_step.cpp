// One step on the device: correct, run, copy windows. Sampling: device_sample.cpp; drafts:
// device_draft.cpp.
#include <algorithm>

#include "engine/device_rows.h"
#include "sched/draft_budget.h"
#include "state/prefix_cache.h"

namespace tidemill {

StepOutcome Device::execute(StepJob& job) {
  StepOutcome out;
  out.step = job.step;
  out.fence = job.fence;
  out.items.resize(job.items.size());
  for (Suspension& suspension : job.suspensions) {
    DeviceRequest& request = *suspension.request;
    request.sequence.blocks = std::move(suspension.blocks);
    *suspension.to = copy_out(runner_.pool(), request.sequence);
    request.drafts.clear();
  }
  out.status = run_step(job, out);
  return out;
}

Status Device::run_step(StepJob& job, StepOutcome& out) {
  if (!job.items.empty()) ++step_;
  std::vector<Row> rows(job.items.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    Row& row = rows[i];
    row.item = &job.items[i];
    row.out = &out.items[i];
    begin_item(*row.item);
    DeviceRequest& request = *row.item->request;
    if (!request.ended && !request.dropped.load(std::memory_order_relaxed)) row.request = &request;
  }
  allocate(job, rows);
  size_t parts = 0;
  for (Row& row : rows) {
    if (row.request == nullptr) continue;
    const int64_t length = row.request->sequence.length();
    const PlanItem& plan = row.item->plan;
    if (length < plan.position || length > plan.position + plan.slack) {
      return fail(ErrorCode::kInternal, "request {} is at token {}; its step was planned for {}+{}",
                  row.request->id, length, plan.position, plan.slack);
    }
    make_input(job, row);
    const auto count = static_cast<int64_t>(row.input.size());
    (plan.decode ? out.decode_rows : out.prefill_rows) += count;
    parts = std::max(parts, row.ends.size());
  }
  for (size_t part = 0; part < parts; ++part) CHECK_OK(run_part(rows, part, out));
  const Clock::time_point begin = Clock::now();
  if (job.make_drafts) CHECK_OK(draft(rows, out));
  out.draft_ms = 1e3 * seconds_since(begin);
  for (Row& row : rows) row.out->length = row.item->request->sequence.length();
  return {};
}

// Takes over what the loop has decided about a request's memory.
void Device::begin_item(JobItem& item) {
  DeviceRequest& request = *item.request;
  if (item.start) {
    Sequence& given = *item.start;
    if (item.restore != nullptr) {
      copy_in(runner_.pool(), *item.restore, given);
      request.sequence = item.restore->sequence;
      request.sequence.slot = given.slot;
      request.sequence.blocks = std::move(given.blocks);
    } else {
      request.sequence = std::move(given);
    }
    request.drafts.clear();
    request.windows_at = request.sequence.length() / kBlockTokens * kBlockTokens;
  }
  if (!item.blocks.empty()) request.sequence.blocks = std::move(item.blocks);
}

// How many of its drafts each decoding request verifies.
void Device::allocate(const StepJob& job, std::vector<Row>& rows) const {
  std::vector<Row*> decoding;
  std::vector<int32_t> limits;
  for (Row& row : rows) {
    if (row.request == nullptr || !row.item->plan.decode) continue;
    row.drafts = std::min({row.item->plan.drafts, static_cast<int64_t>(row.request->drafts.size()),
                           row.request->outputs_left() - 1});
    // Rejection keeps the distribution only if how many drafts are verified does not depend on
    // them; of older drafts the confidences have had their say (sched/draft_budget.h).
    const bool stale = row.request->drafted_at + 1 != step_;
    if (stale && options_.verification == Verification::kRejection) row.drafts = 0;
    decoding.push_back(&row);
    limits.push_back(static_cast<int32_t>(row.drafts));
  }
  if (job.draft_budget < 0 || decoding.empty()) return;
  const auto length = static_cast<size_t>(options_.draft_length);
  std::vector<float> confidence(decoding.size() * length);
  for (size_t r = 0; r < decoding.size(); ++r) {
    const auto& own = decoding[r]->request->confidence;
    std::copy_n(own.begin(), std::min(length, own.size()), confidence.begin() + r * length);
  }
  std::vector<int32_t> lengths(decoding.size());
  allocate_drafts({.confidence = confidence,
                   .limits = limits,
                   .requests = static_cast<int64_t>(decoding.size()),
                   .draft_length = static_cast<int32_t>(length)},
                  job.draft_budget, lengths);
  for (size_t r = 0; r < decoding.size(); ++r) decoding[r]->drafts = lengths[r];
}

void Device::make_input(const StepJob& job, Row& row) const {
  const DeviceRequest& request = *row.request;
  const PlanItem& plan = row.item->plan;
  const int64_t length = request.sequence.length();
  if (plan.decode) {
    row.input = {request.tokens.back()};
    row.input.insert(row.input.end(), request.drafts.begin(), request.drafts.begin() + row.drafts);
    const auto first = request.confidence.begin();
    row.out->confidence.assign(first, first + row.drafts);
  } else {
    const auto from = request.tokens.begin() + length;
    row.input.assign(from, from + plan.tokens);
  }
  const auto count = static_cast<int64_t>(row.input.size());
  row.copies_windows = job.copy_windows;
  if (row.copies_windows && !plan.decode) {
    // The last boundary is what the next request needs; the same prompt again needs the one before
    // its last token, which is always computed.
    row.boundaries = row.item->save_at;
    row.boundaries.push_back((length + count - (plan.samples ? 1 : 0)) / kBlockTokens *
                             kBlockTokens);
    std::sort(row.boundaries.begin(), row.boundaries.end());
    for (const int64_t boundary : row.boundaries) {
      const int64_t end = boundary - length;
      const bool new_part = end > (row.ends.empty() ? 0 : row.ends.back());
      if (new_part && count - end > runner_.pool().layout().reach) row.ends.push_back(end);
    }
  }
  row.ends.push_back(count);
}

Status Device::run_part(std::span<Row> all, size_t part, StepOutcome& out) {
  std::vector<Row*> rows;
  std::vector<StepItem> items;
  for (Row& row : all) {
    if (part >= row.ends.size()) continue;
    const auto begin = static_cast<size_t>(part == 0 ? 0 : row.ends[part - 1]);
    const auto end = static_cast<size_t>(row.ends[part]);
    const PlanItem& plan = row.item->plan;
    const bool last = part + 1 == row.ends.size();
    items.push_back({.sequence = &row.request->sequence,
                     .tokens = std::span<const int32_t>(row.input).subspan(begin, end - begin),
                     .logits = !last || !plan.samples ? Logits::kNone
                               : plan.decode          ? Logits::kAll
                                                      : Logits::kLast});
    rows.push_back(&row);
  }
  const std::vector<DrawRow> draws = draws_of(rows, items);
  const Clock::time_point begin = Clock::now();
  CHECK_OK(runner_.forward().prepare(items, draws));
  TRY(const StepOutput output, runner_.forward().execute());
  Forward::commit(items);
  const Clock::time_point computed = Clock::now();
  out.forward_ms += 1e3 * seconds_between(begin, computed);

  int64_t at = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    Row& row = *rows[i];
    if (items[i].logits != Logits::kNone) {
      Computed own{.first = at, .count = rows_of_logits(items[i])};
      if (!draws.empty() && draws_on_backend(*row.request)) {
        const auto first = static_cast<size_t>(at);
        const auto count = static_cast<size_t>(own.count);
        own.draws = std::span(draws).subspan(first, count);
        own.drawn = output.drawn.subspan(first, count);
      }
      at += own.count;
      if (auto sampled = sample(row, own); !sampled) {
        CHECK_OK(runner_.backend().finish());  // a device that has failed is no request's fault
        row.out->finish = FinishReason::kError;
        row.out->error = std::move(sampled).error();
        row.request->ended = true;
        continue;
      }
    }
    if (row.copies_windows) copy_windows(row);
  }
  out.sample_ms += 1e3 * seconds_since(computed);
  return {};
}

// The windows of the boundaries that this part has crossed: of a prompt those that are wanted, and
// the latest. An end inside accepted drafts leaves state of later tokens, which is nobody's.
void Device::copy_windows(Row& row) const {
  DeviceRequest& request = *row.request;
  const Sequence& sequence = request.sequence;
  const int64_t decided = std::min(sequence.length(), static_cast<int64_t>(request.tokens.size()));
  const auto copy = [&](int64_t boundary) {
    if (boundary <= request.windows_at || boundary > decided) return;
    request.windows_at = boundary;
    auto windows = WindowSnapshots::copy(runner_.pool(), sequence, boundary,
                                         PrefixCache::saves_all_windows(sequence));
    if (windows != nullptr) row.out->windows.push_back(std::move(windows));
  };
  for (const int64_t boundary : row.boundaries) copy(boundary);
  copy(decided / kBlockTokens * kBlockTokens);
}

// Drafts for every request of the step that decodes next, in groups that fit a pass.
Status Device::draft(std::span<Row> rows, StepOutcome& out) {
  if (options_.draft_length == 0) return {};
  std::vector<DeviceRequest*> wanting;
  for (const Row& row : rows) {
    if (row.request == nullptr || !row.item->plan.samples) continue;
    if (row.request->drafts_wanted() > 0) wanting.push_back(row.request);
  }
  const auto block = runner_.model().config().dspark_block_size;
  const auto group = static_cast<size_t>(runner_.forward().max_tokens() / block);
  for (size_t begin = 0; begin < wanting.size(); begin += group) {
    CHECK_OK(
        draft_group(std::span(wanting).subspan(begin, std::min(group, wanting.size() - begin))));
  }
  const auto length = static_cast<size_t>(options_.draft_length);
  for (const DeviceRequest* request : wanting) {
    out.drafting.push_back(request->id);
    out.confidence.insert(out.confidence.end(), request->confidence.begin(),
                          request->confidence.end());
    out.confidence.resize(out.drafting.size() * length);
  }
  return {};
}

}  // namespace tidemill
