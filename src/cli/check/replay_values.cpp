// Level 2 of `tidemill check replay`: both forms on the same tokens, number by number.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "cli/check/replay.h"
#include "sample/log_probabilities.h"
#include "state/prefix_cache.h"

namespace tidemill::cli {
namespace {

constexpr int32_t kTop = 20;

// A pool of its own for each form: a slot or block that one form leaves wrong must not be put right
// by the other.
struct Side {
  std::string_view name;
  std::unique_ptr<StatePool> pool;
  std::unique_ptr<Forward> forward;
  std::unique_ptr<PrefixCache> prefixes;
  Sequence sequence;

  static Result<Side> create(std::string_view name, ModelRunner& runner, ReplayForm form,
                             int64_t tokens) {
    Side side;
    side.name = name;
    TRY(auto layout,
        StateLayout::build(runner.model().config(), runner.model().topology(), runner.backend()));
    const int64_t blocks = 2 * layout.blocks_for(tokens) + 1;
    TRY(auto pool, StatePool::create(runner.backend(), std::move(layout), 2, blocks));
    side.pool = std::make_unique<StatePool>(std::move(pool));
    side.pool->set_poison(true);  // who reads what was not computed gets NaN
    side.pool->poison_free_memory();
    TRY(auto forward,
        Forward::create(runner.model(), runner.backend(), *side.pool,
                        {.max_tokens = runner.options().max_step_tokens, .replay_form = form}));
    side.forward = std::make_unique<Forward>(std::move(forward));
    side.prefixes = std::make_unique<PrefixCache>(*side.pool, WindowOptions{.budget_bytes = 0});
    return side;
  }
};

std::span<const float> row_of(const Rows& rows, int64_t row) {
  return {rows.f32(row), static_cast<size_t>(rows.width)};
}

// First element that differs in its bits; -1: none.
int64_t first_difference(std::span<const float> a, std::span<const float> b) {
  if (std::memcmp(a.data(), b.data(), a.size_bytes()) == 0) return -1;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) return static_cast<int64_t>(i);
  }
  return -1;
}

struct Deviation {
  int64_t tokens = 0;
  double sum = 0;
  double largest = 0;

  void add(double delta) {
    ++tokens;
    sum += std::fabs(delta);
    largest = std::max(largest, std::fabs(delta));
  }
  std::string text(std::string_view what) const {
    return fmt::format(
        "{} against the exact pass: |delta log-probability| mean {:.6f}, max {:.6f} "
        "over {} tokens",
        what, tokens == 0 ? 0.0 : sum / static_cast<double>(tokens), largest, tokens);
  }
};

class Comparison {
 public:
  Comparison(ModelRunner& runner, int64_t keep, Side& compact, Side& mask, CheckReport& report)
      : model_(runner.model()),
        chain_({.weights = "check", .layout = compact.pool->layout().fingerprint()}),
        keep_(keep),
        compact_(compact),
        mask_(mask),
        report_(report) {}

  Status run(const std::vector<int32_t>& ids) {
    ids_ = ids;
    prompt_ = static_cast<int64_t>(ids.size()) - kReplayDecode;
    for (Side* side : {&compact_, &mask_}) side->prefixes->clear();
    CHECK_OK(exact());
    const int64_t largest = compact_.forward->max_tokens();
    const int64_t odd = std::min(largest, compact_.pool->layout().window_tokens - 1);
    for (const bool hit : {false, true}) {
      for (const int64_t chunk : {largest, odd}) {
        Deviation& deviation = hit ? after_hit : without_hit;
        auto outcome = approximate(hit, chunk, chunk == largest ? &deviation : nullptr);
        release();
        CHECK_OK(outcome);
      }
    }
    return {};
  }

  Deviation without_hit;
  Deviation after_hit;

 private:
  std::string at(int64_t position) const {
    return fmt::format("prompt of {}, hit {}, keep {}, chunks of {}: token {}", prompt_, hit_,
                       keep_, chunk_, position);
  }
  TokenView prompt() const { return {std::span(ids_).first(static_cast<size_t>(prompt_)), {}}; }
  void release() {
    for (Side* side : {&compact_, &mask_}) {
      if (side->sequence.slot >= 0) side->pool->release(side->sequence);
    }
  }

  // The pass without approximation, whose blocks both sides then find in their prefix caches.
  Status exact() {
    exact_.assign(ids_.size(), 0);
    for (Side* side : {&compact_, &mask_}) {
      TRY(side->sequence, side->pool->acquire());
      const auto total = static_cast<int64_t>(ids_.size());
      while (side->sequence.length() < total) {
        const int64_t begin = side->sequence.length();
        TRY(const Rows logits, step(*side, std::min(side->forward->max_tokens(), total - begin)));
        for (int64_t row = 0; row < logits.count; ++row) {
          const auto next = static_cast<size_t>(begin + row + 1);
          if (side != &compact_ || next >= ids_.size()) continue;
          CHECK_OK(log_probabilities(row_of(logits, row), ids_[next], 0, begin + row, a_));
          exact_[next] = static_cast<double>(a_.chosen.logprob);
        }
      }
      side->prefixes->publish(side->sequence, total, chain_);
    }
    release();
    return {};
  }

  Result<Rows> step(Side& side, int64_t count) {
    const auto begin = static_cast<size_t>(side.sequence.length());
    const StepItem item{&side.sequence, std::span(ids_).subspan(begin, static_cast<size_t>(count)),
                        Logits::kAll};
    TRY(const StepOutput output, side.forward->run({&item, 1}));
    return output.logits;
  }

  // A request of this prompt on both sides at once.
  Status approximate(bool hit, int64_t chunk, Deviation* deviation) {
    chunk_ = chunk;
    hit_ = 0;
    for (Side* side : {&compact_, &mask_}) {
      TRY(side->sequence, side->pool->acquire());
      if (hit) CHECK_OK(adopt(*side));
      side->sequence.decoder_floor = prompt_ - keep_;
    }
    const auto cached_a = cached(compact_);
    const auto cached_b = cached(mask_);
    report_.expect("the cached prefix is the same on both sides", cached_a == cached_b,
                   [&] { return at(0); });
    const auto total = static_cast<int64_t>(ids_.size());
    while (compact_.sequence.length() < total) {
      const int64_t begin = compact_.sequence.length();
      const int64_t count = begin < prompt_ ? std::min(chunk, prompt_ - begin) : 1;
      TRY(const Rows a, step(compact_, count));
      TRY(const Rows b, step(mask_, count));
      CHECK_OK(compare(a, b, deviation));
      if (compact_.sequence.length() >= prompt_ && compact_.sequence.length() < total) {
        CHECK_OK(compare_drafts());
      }
    }
    report_.expect("the cached prefix is not written",
                   cached(compact_) == cached_a && cached(mask_) == cached_b,
                   [&] { return at(0); });
    return {};
  }

  Status adopt(Side& side) {
    PrefixHit hit =
        side.prefixes->lookup(prompt(), chain_, {.reuse = Reuse::kEncoderReplay, .tail = keep_});
    if (hit.replay_from < 0) {
      return fail(ErrorCode::kInternal, "no encoder replay for a prompt of {} tokens: {}", prompt_,
                  hit.text);
    }
    hit_ = hit.adopted;
    side.prefixes->adopt(std::move(hit), prompt(), side.sequence);
    return {};
  }

  static std::vector<std::byte> cached(const Side& side) {
    std::vector<std::byte> bytes;
    for (int64_t i = 0; i < side.sequence.adopted / kBlockTokens; ++i) {
      const auto block =
          side.pool->read(side.pool->block(side.sequence.blocks[static_cast<size_t>(i)]));
      bytes.insert(bytes.end(), block.begin(), block.end());
    }
    return bytes;
  }

  // The rows are the last ones of what both sides have run.
  Status compare(const Rows& a, const Rows& b, Deviation* deviation) {
    report_.expect("rows with logits", a.count == b.count, [&] {
      return fmt::format("{}: {} and {} rows", at(compact_.sequence.length()), a.count, b.count);
    });
    if (a.count != b.count) return {};
    for (int64_t row = 0; row < a.count; ++row) {
      const int64_t position = compact_.sequence.length() - a.count + row;
      const int64_t where = first_difference(row_of(a, row), row_of(b, row));
      report_.expect("logits, rows", where < 0, [&] {
        return fmt::format("{}: logit {} is {} and {}", at(position), where, a.f32(row)[where],
                           b.f32(row)[where]);
      });
      if (where >= 0) continue;  // what follows from logits would differ too, or be NaN
      const auto next = static_cast<size_t>(position + 1);
      const int32_t chosen = next < ids_.size() ? ids_[next] : 0;
      CHECK_OK(log_probabilities(row_of(a, row), chosen, kTop, position, a_));
      CHECK_OK(log_probabilities(row_of(b, row), chosen, kTop, position, b_));
      report_.expect(
          "log-probabilities of the next token", a_.chosen.logprob == b_.chosen.logprob, [&] {
            return fmt::format("{}: {} and {}", at(position), a_.chosen.logprob, b_.chosen.logprob);
          });
      const bool top = std::equal(a_.top.begin(), a_.top.end(), b_.top.begin(), b_.top.end(),
                                  [](const TokenLogprob& x, const TokenLogprob& y) {
                                    return x.token == y.token && x.logprob == y.logprob;
                                  });
      report_.expect("top 20 tokens", top, [&] { return at(position); });
      if (deviation != nullptr && position + 1 >= prompt_ && next < ids_.size()) {
        deviation->add(static_cast<double>(a_.chosen.logprob) - exact_[next]);
      }
    }
    return {};
  }

  // The draft block after the tokens so far, each position given the real token before it.
  Status compare_drafts() {
    if (model_.weights().draft.stages.empty()) return {};
    const auto begin = static_cast<size_t>(compact_.sequence.length());
    for (Side* side : {&compact_, &mask_}) {
      const Forward::DraftItem item{&side->sequence, ids_[begin]};
      CHECK_OK(side->forward->draft({&item, 1}));
    }
    for (int64_t k = 0; k < model_.config().dspark_block_size; ++k) {
      const int32_t previous = ids_[std::min(begin + static_cast<size_t>(k), ids_.size() - 1)];
      TRY(const auto a, compact_.forward->draft_logits(k, {&previous, 1}));
      TRY(const auto b, mask_.forward->draft_logits(k, {&previous, 1}));
      const int64_t where = first_difference(row_of(a.logits, 0), row_of(b.logits, 0));
      report_.expect("draft logits, rows", where < 0, [&] {
        return fmt::format("{}: draft {}, logit {}", at(static_cast<int64_t>(begin)), k, where);
      });
      report_.expect("draft confidences", first_difference(a.confidence, b.confidence) < 0, [&] {
        return fmt::format("{}: draft {}: {} and {}", at(static_cast<int64_t>(begin)), k,
                           a.confidence[0], b.confidence[0]);
      });
    }
    return {};
  }

  const Model& model_;
  KeyChain chain_;
  int64_t keep_;
  Side& compact_;
  Side& mask_;
  CheckReport& report_;
  std::vector<int32_t> ids_;
  std::vector<double> exact_;  // per token: its log-probability after those before it
  int64_t prompt_ = 0;
  int64_t hit_ = 0;
  int64_t chunk_ = 0;
  LogProbabilities a_, b_;
};

}  // namespace

int64_t smallest_replayed_prompt(const StateLayout& layout, int64_t keep) {
  return (layout.window_tokens / kBlockTokens + 1) * kBlockTokens + keep;
}

Result<CheckReport> check_replay_values(ModelRunner& runner, const ReplayValues& values) {
  int64_t longest = 0;
  for (const auto& ids : values.ids) {
    longest = std::max(longest, static_cast<int64_t>(ids.size()));
  }
  TRY(Side compact, Side::create("compact", runner, ReplayForm::kCompact, longest));
  TRY(Side mask, Side::create("mask", runner, ReplayForm::kMask, longest));
  CheckReport report(fmt::format(
      "level 2: {} prompts up to {} tokens and {} teacher-forced tokens after each, with and "
      "without a hit, keep {}",
      values.ids.size(), longest - kReplayDecode, kReplayDecode, values.keep));
  Comparison comparison(runner, values.keep, compact, mask, report);
  for (const auto& ids : values.ids) CHECK_OK(comparison.run(ids));
  report.note(
      comparison.without_hit.text(fmt::format("decoder on the last {} tokens", values.keep)));
  report.note(comparison.after_hit.text(
      fmt::format("the same after a hit whose last {} tokens are replayed",
                  compact.pool->layout().window_tokens)));
  return report;
}

}  // namespace tidemill::cli
