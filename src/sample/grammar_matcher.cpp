#include <algorithm>
#include <bit>
#include <cassert>
#include <limits>
#include <optional>
#include <utility>

#include "sample/grammar_data.h"

namespace tidemill {
namespace {

using Vocabulary = GrammarVocabulary::Data;

void forbid(std::span<uint32_t> mask, int32_t token) {
  mask[static_cast<size_t>(token) / 32] &= ~(1u << (token % 32));
}

void allow_all(std::span<uint32_t> mask, int64_t size) {
  std::fill(mask.begin(), mask.end(), ~0u);
  if (size % 32 != 0) mask.back() = (1u << (size % 32)) - 1;
}

bool is_stop(const Vocabulary& vocabulary, int32_t token) {
  const std::vector<int32_t>& stops = vocabulary.stop_tokens;
  return std::find(stops.begin(), stops.end(), token) != stops.end();
}

}  // namespace

struct GrammarMatcher::State {
  enum class Phase : uint8_t { kReasoning, kContent, kGrammar, kDone };
  // Before a token: what taking it back restores.
  struct Step {
    Phase phase = Phase::kReasoning;
    uint8_t think_progress = 0;   // of </think>, in the reasoning
    uint8_t marker_progress = 0;  // of <｜DSML｜, outside of the grammar
  };

  std::shared_ptr<const CompiledGrammar> grammar;
  Step now = {};
  std::vector<Step> steps = {};                                    // one for each token taken
  std::optional<xgrammar::GrammarMatcher> matcher = std::nullopt;  // kGrammar, and kDone behind it
  double seconds = 0.0;                                            // spent in xgrammar

  const Vocabulary& vocabulary() const { return *grammar->data().vocabulary; }

  bool begins_free() const {
    const CompiledGrammar::Data& data = grammar->data();
    return data.kind == GrammarSpec::Kind::kToolCalls && data.choice == ToolChoice::kAuto;
  }

  void begin_answer() {
    now = {begins_free() ? Phase::kContent : Phase::kGrammar};
    if (now.phase == Phase::kGrammar) begin_grammar();
  }

  void begin_grammar() {
    now = {Phase::kGrammar};
    matcher.emplace(grammar->data().grammar, vocabulary().stop_tokens);
  }

  // The grammar of calls begins before the first marker, and the answer behind it.
  void begin_calls() {
    begin_grammar();
    const bool accepted =
        matcher->AcceptString("\n\n<") && matcher->AcceptToken(vocabulary().marker);
    assert(accepted);
    static_cast<void>(accepted);
  }

  bool accept_free(int32_t token);
  bool accept(int32_t token);
};

bool GrammarMatcher::State::accept_free(int32_t token) {
  const Vocabulary& known = vocabulary();
  const bool in_reasoning = now.phase == Phase::kReasoning;
  if (in_reasoning && token == known.think_end) {
    begin_answer();
    return true;
  }
  if (token == known.marker) {
    // Behind a '<' that the text ends with.
    if (in_reasoning || now.marker_progress != 1) return false;
    begin_calls();
    return true;
  }
  if (is_stop(known, token)) {
    if (in_reasoning) return false;
    now.phase = Phase::kDone;
    return true;
  }
  const auto is_completing = [token](const SpellingGuard& guard, uint8_t progress) {
    const std::vector<int32_t>& tokens = guard.completing(progress);
    return std::binary_search(tokens.begin(), tokens.end(), token);
  };
  if (is_completing(known.marker_guard, now.marker_progress)) return false;
  if (in_reasoning && is_completing(known.think_guard, now.think_progress)) return false;
  const std::string& bytes = known.bytes[static_cast<size_t>(token)];
  now.marker_progress = known.marker_guard.advance(now.marker_progress, bytes);
  now.think_progress = known.think_guard.advance(now.think_progress, bytes);
  return true;
}

bool GrammarMatcher::State::accept(int32_t token) {
  if (token < 0 || token >= vocabulary().size) return false;
  switch (now.phase) {
    case Phase::kReasoning:
    case Phase::kContent:
      return accept_free(token);
    case Phase::kGrammar:
      if (!matcher->AcceptToken(token)) return false;
      if (matcher->IsTerminated()) now.phase = Phase::kDone;
      return true;
    case Phase::kDone:
      return false;
  }
  return false;
}

Result<GrammarMatcher> GrammarMatcher::make(std::shared_ptr<const CompiledGrammar> grammar,
                                            Prompt::Start start) {
  return catching([&]() -> Result<GrammarMatcher> {
    auto state = std::make_unique<State>(State{std::move(grammar)});
    switch (start) {
      case Prompt::Start::kReasoning:
        break;
      case Prompt::Start::kContent:
        state->begin_answer();
        break;
      case Prompt::Start::kToolCalls:
        if (state->grammar->data().kind != GrammarSpec::Kind::kToolCalls) {
          return fail(ErrorCode::kInternal,
                      "the answer begins with tool calls, but its grammar is of another kind");
        }
        state->begin_calls();
        state->matcher->AcceptString(" calls>\n");
        break;
    }
    return GrammarMatcher(std::move(state));
  });
}

GrammarMatcher::GrammarMatcher(std::unique_ptr<State> state) : state_(std::move(state)) {}
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;
GrammarMatcher::~GrammarMatcher() = default;

Status GrammarMatcher::fill_mask(std::span<uint32_t> mask) {
  const Vocabulary& vocabulary = state_->vocabulary();
  assert(static_cast<int64_t>(mask.size()) == (vocabulary.size + 31) / 32);
  const State::Step& now = state_->now;
  if (now.phase == State::Phase::kDone) {
    std::fill(mask.begin(), mask.end(), 0u);
    return {};
  }
  if (now.phase == State::Phase::kGrammar) {
    const Clock::time_point begin = Clock::now();
    CHECK_OK(catching([&]() -> Status {
      auto width = static_cast<int64_t>(mask.size());
      DLTensor tensor{};
      tensor.data = mask.data();
      tensor.device = {kDLCPU, 0};
      tensor.ndim = 1;
      tensor.dtype = xgrammar::GetBitmaskDLType();
      tensor.shape = &width;
      state_->matcher->FillNextTokenBitmask(&tensor);
      return {};
    }));
    state_->seconds += seconds_since(begin);
    if (state_->seconds > kFreeSeconds + kSecondsPerToken * static_cast<double>(accepted())) {
      return fail(ErrorCode::kDeadline,
                  "the output constraint took {:.2f} s for {} tokens: it is too ambiguous",
                  state_->seconds, accepted());
    }
    if (std::all_of(mask.begin(), mask.end(), [](uint32_t word) { return word == 0; })) {
      return fail(ErrorCode::kRequest,
                  "the output constraint cannot be satisfied: after {} tokens none may follow",
                  accepted());
    }
    return {};
  }

  allow_all(mask, vocabulary.size);
  const bool in_reasoning = now.phase == State::Phase::kReasoning;
  if (in_reasoning) {
    for (const int32_t stop : vocabulary.stop_tokens) forbid(mask, stop);
    for (const int32_t token : vocabulary.think_guard.completing(now.think_progress)) {
      forbid(mask, token);
    }
    mask[static_cast<size_t>(vocabulary.think_end) / 32] |= 1u << (vocabulary.think_end % 32);
  }
  for (const int32_t token : vocabulary.marker_guard.completing(now.marker_progress)) {
    forbid(mask, token);
  }
  if (in_reasoning || now.marker_progress != 1) {
    forbid(mask, vocabulary.marker);
  } else {
    mask[static_cast<size_t>(vocabulary.marker) / 32] |= 1u << (vocabulary.marker % 32);
  }
  return {};
}

bool GrammarMatcher::accept(int32_t token) {
  const State::Step before = state_->now;
  const Clock::time_point begin = Clock::now();
  const Result<bool> accepted = catching([&]() -> Result<bool> { return state_->accept(token); });
  if (!accepted || !*accepted) return false;
  state_->seconds += seconds_since(begin);
  state_->steps.push_back(before);
  return true;
}

void GrammarMatcher::rollback(int64_t count) {
  assert(count >= 0 && count <= accepted());
  if (count == 0) return;
  const auto keep = state_->steps.end() - count;
  // The grammar's own tokens among them.
  const auto in_grammar = std::count_if(keep, state_->steps.end(), [](const State::Step& step) {
    return step.phase == State::Phase::kGrammar;
  });
  state_->now = *keep;
  state_->steps.erase(keep, state_->steps.end());
  if (state_->now.phase != State::Phase::kGrammar) {
    state_->matcher.reset();
  } else {
    state_->matcher->Rollback(static_cast<int>(in_grammar));
  }
}

int64_t GrammarMatcher::accepted() const { return static_cast<int64_t>(state_->steps.size()); }
bool GrammarMatcher::is_terminated() const { return state_->now.phase == State::Phase::kDone; }
bool GrammarMatcher::is_constrained() const {
  return state_->now.phase == State::Phase::kGrammar || state_->matcher.has_value();
}

GrammarMatcher GrammarMatcher::fork() const {
  auto state = std::make_unique<State>(*state_);
  // The copy of a matcher shares its state.
  if (state->matcher) state->matcher = state_->matcher->Fork();
  return GrammarMatcher(std::move(state));
}

void apply_mask(std::span<const uint32_t> mask, std::span<float> logits) {
  assert(mask.size() == (logits.size() + 31) / 32);
  for (size_t word = 0; word < mask.size(); ++word) {
    if (mask[word] == ~0u) continue;
    const size_t begin = word * 32;
    const size_t end = std::min(begin + 32, logits.size());
    for (size_t token = begin; token < end; ++token) {
      if ((mask[word] >> (token - begin) & 1u) == 0) {
        logits[token] = -std::numeric_limits<float>::infinity();
      }
    }
  }
}

Result<int64_t> mask_rows(GrammarMatcher& matcher, std::span<const int32_t> drafts,
                          std::span<float> logits, std::span<uint32_t> mask) {
  const size_t width = logits.size() / (drafts.size() + 1);
  assert(logits.size() == width * (drafts.size() + 1));
  const int64_t before = matcher.accepted();
  Result<int64_t> rows = 0;
  for (size_t row = 0; row <= drafts.size(); ++row) {
    if (auto filled = matcher.fill_mask(mask); !filled) {
      rows = tl::unexpected(filled.error());
      break;
    }
    apply_mask(mask, logits.subspan(row * width, width));
    ++*rows;
    const bool goes_on =
        row < drafts.size() && matcher.accept(drafts[row]) && !matcher.is_terminated();
    if (!goes_on) break;
  }
  matcher.rollback(matcher.accepted() - before);
  return rows;
}

}  // namespace tidemill
