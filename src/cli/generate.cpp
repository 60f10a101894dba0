#include "cli/generate.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "base/clock.h"
#include "sample/verify.h"

namespace tidemill::cli {

// An answer on its way.
struct Generator::Answer {
  Generation out;
  const std::function<void(int32_t)>& emit;
  int64_t limit = 0;   // tokens
  int32_t anchor = 0;  // the latest token: decided, not yet processed
  bool done = false;

  void finish(FinishReason reason) {
    out.finish = reason;
    done = true;
  }
  void take(int32_t id) {
    anchor = id;
    out.ids.push_back(id);
    emit(id);
    if (static_cast<int64_t>(out.ids.size()) >= limit) finish(FinishReason::kLength);
  }
};

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "";
}

int64_t max_drafts(const Config& config) {
  return config.num_nextn_predict_layers > 0 ? config.dspark_block_size : 0;
}

Generator::Generator(ModelRunner& engine)
    : engine_(engine),
      sampler_(engine.model().config().vocab_size),
      ends_(engine.model().generation().eos_token_ids) {
  ends_.push_back(engine.model().config().eos_token_id);
}

Generator::~Generator() {
  if (sequence_.slot >= 0) engine_.pool().release(sequence_);
}

namespace {

bool is_cancelled(const GenerateOptions& options) {
  return options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed);
}

}  // namespace

bool Generator::is_end(int32_t id) const {
  return std::find(ends_.begin(), ends_.end(), id) != ends_.end();
}

Result<Generation> Generator::generate(std::span<const int32_t> prompt,
                                       const GenerateOptions& options,
                                       const std::function<void(int32_t)>& emit) {
  CHECK_OK(options.sampling.validate(engine_.model().config().vocab_size));
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  const int64_t left = engine_.options().context - prompt_tokens;
  if (prompt.empty() || left < 1) {
    return fail(ErrorCode::kContextLength,
                "a prompt of {} tokens leaves no room for an answer in a context of {}",
                prompt_tokens, engine_.options().context);
  }
  Answer answer{.out = {}, .emit = emit, .limit = std::min(options.max_tokens, left)};
  answer.out.prompt_tokens = prompt_tokens;
  answer.out.proposed.resize(static_cast<size_t>(options.drafts));
  answer.out.accepted.resize(static_cast<size_t>(options.drafts));
  if (answer.limit < 1) return std::move(answer.out);

  const Clock::time_point begin = Clock::now();
  CHECK_OK(prefill(prompt, options, answer));
  const Clock::time_point first_token = Clock::now();
  answer.out.prefill_seconds = seconds_between(begin, first_token);
  while (!answer.done) {
    if (is_cancelled(options)) {
      answer.finish(FinishReason::kCancelled);
    } else {
      CHECK_OK(step(options, answer));
    }
  }
  answer.out.decode_seconds = seconds_since(first_token);
  return std::move(answer.out);
}

// Keeps what the sequence already holds of the prompt, or starts an empty one. Returns how many
// tokens of the prompt need not be processed.
Result<int64_t> Generator::prepare(std::span<const int32_t> prompt) {
  StatePool& pool = engine_.pool();
  const int64_t keep = engine_.options().replay_keep;
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  if (sequence_.slot >= 0 && keep == 0) {
    const auto& old = sequence_.tokens;
    const auto end = std::mismatch(old.begin(), old.end(), prompt.begin(), prompt.end()).first;
    // The last token of a prompt is processed in any case: its logits are needed.
    const int64_t common = std::min<int64_t>(end - old.begin(), prompt_tokens - 1);
    if (sequence_.length() - common <= pool.layout().rollback) {
      CHECK_OK(pool.truncate(sequence_, common));
      return common;
    }
  }
  if (sequence_.slot >= 0) pool.release(sequence_);
  sequence_ = {};
  TRY(sequence_, pool.acquire());
  // Bounded replay counts from the end of the whole prompt, however it is cut into chunks.
  if (keep > 0) sequence_.decoder_floor = std::max<int64_t>(0, prompt_tokens - keep);
  return 0;
}

Status Generator::prefill(std::span<const int32_t> prompt, const GenerateOptions& options,
                          Answer& answer) {
  TRY(answer.out.reused_tokens, prepare(prompt));
  history_ = {};
  if (options.sampling.uses_history()) history_.add_prompt(prompt);

  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  int32_t id = 0;
  const auto take = [&](int64_t, const Rows& logits) -> Status {
    const std::span<const float> row(logits.f32(logits.count - 1),
                                     static_cast<size_t>(logits.width));
    TRY(id, sampler_.sample(row, options.sampling, history_, prompt_tokens));
    return {};
  };
  // Chunk by chunk, so that a long prompt can be cancelled too.
  for (int64_t end = answer.out.reused_tokens; end < prompt_tokens;) {
    if (is_cancelled(options)) {
      answer.finish(FinishReason::kCancelled);
      return {};
    }
    end = std::min(end + engine_.forward().max_tokens(), prompt_tokens);
    const Logits logits = end == prompt_tokens ? Logits::kLast : Logits::kNone;
    CHECK_OK(
        engine_.prefill(sequence_, prompt.first(static_cast<size_t>(end)), logits, take, 0, false));
  }
  accept(id, options, answer);
  return {};
}

void Generator::accept(int32_t id, const GenerateOptions& options, Answer& answer) {
  if (options.sampling.uses_history()) history_.add_output(id);
  if (is_end(id)) {
    answer.finish(FinishReason::kStop);
  } else {
    answer.take(id);
  }
}

Result<std::vector<int32_t>> Generator::draft(const GenerateOptions& options, int32_t anchor,
                                              int64_t count) {
  std::vector<int32_t> drafts;
  if (count < 1) return drafts;
  const Forward::DraftItem item{.sequence = &sequence_, .anchor = anchor};
  CHECK_OK(engine_.forward().draft({&item, 1}));
  int32_t previous = anchor;
  for (int64_t k = 0; k < count; ++k) {
    TRY(const Forward::DraftRow row, engine_.forward().draft_logits(k, {&previous, 1}));
    const std::span<const float> logits(row.logits.f32(0), static_cast<size_t>(row.logits.width));
    const NoiseKey key{.seed = options.sampling.seed, .position = sequence_.length() + 1 + k};
    TRY(previous, sampler_.draft(logits, options.sampling.temperature, key));
    drafts.push_back(previous);
  }
  return drafts;
}

// One target pass: the anchor and its drafts in, one token or more out.
Status Generator::step(const GenerateOptions& options, Answer& answer) {
  const int64_t length = sequence_.length();
  const auto taken = static_cast<int64_t>(answer.out.ids.size());
  // No more drafts than tokens that may still follow the one this pass gives anyway.
  const int64_t count = std::min(options.drafts, answer.limit - taken - 1);
  TRY(const std::vector<int32_t> drafts, draft(options, answer.anchor, count));

  std::vector<int32_t> tokens{answer.anchor};
  tokens.insert(tokens.end(), drafts.begin(), drafts.end());
  const StepItem item{.sequence = &sequence_, .tokens = tokens, .logits = Logits::kAll};
  TRY(const StepOutput output, engine_.forward().run({&item, 1}));
  const Rows& rows = output.logits;
  assert(rows.stride == rows.width);
  const std::span<const float> target(rows.f32(0), static_cast<size_t>(rows.count * rows.width));
  TRY(const Verdict verdict,
      verify_keyed(sampler_, target, drafts, options.sampling, history_, length + 1));
  CHECK_OK(engine_.pool().truncate(sequence_, length + 1 + verdict.accepted));

  ++answer.out.steps;
  for (size_t k = 0; k < drafts.size(); ++k) {
    ++answer.out.proposed[k];
    answer.out.accepted[k] += static_cast<int64_t>(k) < verdict.accepted;
  }
  for (int64_t k = 0; k <= verdict.accepted && !answer.done; ++k) {
    accept(k < verdict.accepted ? drafts[static_cast<size_t>(k)] : verdict.next, options, answer);
  }
  return {};
}

}  // namespace tidemill::cli
