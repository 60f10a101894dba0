// One step on the device: correct, run, sample, verify, copy windows; drafts: device_draft.cpp.
#include <algorithm>

#include "engine/device.h"
#include "sample/drawn.h"
#include "sample/log_probabilities.h"
#include "sample/verify.h"
#include "sched/draft_budget.h"
#include "state/prefix_cache.h"

namespace tidemill {

// A job's item while its step runs.
struct Device::Row {
  JobItem* item = nullptr;
  DeviceRequest* request = nullptr;  // null: nothing to compute
  ItemOutcome* out = nullptr;
  std::vector<int32_t> input;
  int64_t drafts = 0;  // the last tokens of a decode item's input
  // Ends of the parts that the input runs in: a prompt is cut where its windows are copied.
  std::vector<int64_t> ends;
  bool copies_windows = false;
  int64_t before_last = 0;  // the last boundary before a prompt's last token
};

// What the step has computed for an item that samples.
struct Device::Computed {
  int64_t first = 0;  // its first row of logits
  int64_t count = 0;
  // Of the rows; empty: their logits have to be seen.
  std::span<const DrawRow> draws;
  std::span<const Drawn> drawn;
};

namespace {

int64_t rows_of_logits(const StepItem& item) {
  if (item.logits == Logits::kNone) return 0;
  return item.logits == Logits::kLast ? 1 : static_cast<int64_t>(item.tokens.size());
}

}  // namespace

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
    std::vector<int64_t> boundaries = row.item->save_at;
    boundaries.push_back((length + count - (plan.samples ? 1 : 0)) / kBlockTokens * kBlockTokens);
    if (plan.samples) row.before_last = boundaries.back();
    std::sort(boundaries.begin(), boundaries.end());
    for (const int64_t boundary : boundaries) {
      const int64_t end = boundary - length;
      const bool new_part = end > (row.ends.empty() ? 0 : row.ends.back());
      // Rings still hold the window of a boundary that was passed by so many tokens.
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

// The windows of the latest boundary, if this part has crossed one, and those before a prompt's
// last token. An end inside accepted drafts leaves state of later tokens, which is nobody's.
void Device::copy_windows(Row& row) const {
  DeviceRequest& request = *row.request;
  const Sequence& sequence = request.sequence;
  const int64_t decided = std::min(sequence.length(), static_cast<int64_t>(request.tokens.size()));
  for (const int64_t boundary :
       {std::min(row.before_last, decided), decided / kBlockTokens * kBlockTokens}) {
    if (boundary <= request.windows_at || boundary % kBlockTokens != 0) continue;
    request.windows_at = boundary;
    auto windows = WindowSnapshots::copy(runner_.pool(), sequence, boundary,
                                         PrefixCache::saves_all_windows(sequence));
    if (windows != nullptr) row.out->windows.push_back(std::move(windows));
  }
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
