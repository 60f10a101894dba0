#include "sample/grammar_deadline.h"

#include <xgrammar/tokenizer_info.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

// Headers inside xgrammar (cmake/xgrammar.cmake lets this file see them).
#include <fsm.h>
#include <grammar_builder.h>

namespace xgrammar {
class EarleyParser;
}

namespace tidemill {
namespace {

thread_local CompileLimit* current_limit = nullptr;

[[noreturn]] void interrupt(ErrorCode code, std::string message) {
  throw CompileInterrupted{{code, std::move(message)}};
}

using ExprType = xgrammar::Grammar::Impl::GrammarExprType;

// Distinct rules that the expressions call.
int64_t called_rules(xgrammar::GrammarBuilder& builder, const std::vector<int32_t>& expressions) {
  std::set<int32_t> rules;
  for (const int32_t id : expressions) {
    const auto expr = builder.GetGrammarExpr(id);
    if (expr.type == ExprType::kRuleRef) rules.insert(expr[0]);
  }
  return static_cast<int64_t>(rules.size());
}

// Shorter lists cannot cost much.
constexpr size_t kLongList = 1000;

// xgrammar keeps for each rule what follows it in the sequence.
void count_sequence(CompileLimit& limit, xgrammar::GrammarBuilder& builder,
                    const std::vector<int32_t>& elements) {
  constexpr int64_t kBytes = 256;  // of a list and the rule that it may be of
  const auto size = static_cast<int64_t>(elements.size());
  int64_t bytes = kBytes + 4 * size;
  if (elements.size() > kLongList) bytes += 4 * size * called_rules(builder, elements);
  limit.count_bytes(bytes);
}

// xgrammar looks through all alternatives of a rule once for each rule that they call, to see
// whether it can be empty.
void count_choices(CompileLimit& limit, xgrammar::GrammarBuilder& builder,
                   const std::vector<int32_t>& choices) {
  constexpr int64_t kMaxLooks = 20'000'000;
  if (choices.size() <= kLongList) return;
  limit.check();
  int64_t calls = 0;
  for (const int32_t id : choices) {
    const auto choice = builder.GetGrammarExpr(id);
    if (choice.type == ExprType::kRuleRef) ++calls;
    if (choice.type != ExprType::kSequence) continue;
    calls += std::count_if(choice.begin(), choice.end(), [&](int32_t element) {
      return builder.GetGrammarExpr(element).type == ExprType::kRuleRef;
    });
  }
  const auto size = static_cast<int64_t>(choices.size());
  if (calls * size <= kMaxLooks) return;
  interrupt(ErrorCode::kRequest,
            fmt::format("the output constraint has a rule of {} alternatives that call {} rules, a "
                        "product above {}: divide it",
                        size, calls, kMaxLooks));
}

constexpr double kMaxMergingCost = 1e8;

// About how many nanoseconds merging takes: the first round looks at all pairs of edges of a state,
// later ones at the pairs that are labelled differently; a round goes one character deeper.
double merging_cost(const xgrammar::FSMWithStartEnd& automaton) {
  constexpr double kPerState = 100.0;
  const auto& edges = automaton.GetFsm().GetEdges();
  const double least = 2.0 * kPerState * static_cast<double>(edges.size());
  if (least > kMaxMergingCost) return least;
  const auto square = [](size_t count) {
    return static_cast<double>(count) * static_cast<double>(count);
  };
  std::vector<size_t> incoming(edges.size(), 0);
  std::vector<int> depth(edges.size(), -1);
  std::vector<int> reached = {automaton.GetStart()};
  depth[static_cast<size_t>(automaton.GetStart())] = 0;
  double pairs = 0.0;
  double later_pairs = 0.0;
  size_t ends = 0;
  int deepest = 0;
  for (size_t next = 0; next < reached.size(); ++next) {
    const int state = reached[next];
    deepest = depth[static_cast<size_t>(state)];
    ends += automaton.IsEndState(state) ? 1 : 0;
    std::set<std::pair<int32_t, int32_t>> labels;
    const bool is_branch = edges[static_cast<size_t>(state)].size() > 1;
    for (const auto& edge : edges[static_cast<size_t>(state)]) {
      if (is_branch) labels.emplace(edge.min, edge.max);
      const auto target = static_cast<size_t>(edge.target);
      ++incoming[target];
      if (depth[target] >= 0) continue;
      depth[target] = deepest + 1;
      reached.push_back(edge.target);
    }
    pairs += square(edges[static_cast<size_t>(state)].size());
    later_pairs += square(labels.size());
  }
  for (const size_t count : incoming) pairs += square(count);
  pairs += square(ends);
  const double round = kPerState * static_cast<double>(edges.size()) + 2.0 * later_pairs;
  return 2.0 * pairs + 2.0 * static_cast<double>(deepest) * round;
}

}  // namespace

CompileLimit::CompileLimit(CompileBounds bounds) : bounds_(std::move(bounds)) {
  current_limit = this;
}
CompileLimit::~CompileLimit() { current_limit = nullptr; }
CompileLimit* CompileLimit::current() { return current_limit; }

void CompileLimit::check() {
  if (bounds_.stop.stop_requested()) {
    interrupt(ErrorCode::kCancelled, "the output constraint is no longer wanted");
  }
  if (bounds_.deadline.expired()) {
    interrupt(ErrorCode::kDeadline,
              "the output constraint was not compiled in the time that it may take: simplify it");
  }
}

void CompileLimit::count_step() {
  constexpr int64_t kStepsPerLook = 256;
  if (++steps_ % kStepsPerLook == 0) check();
}

void CompileLimit::count_bytes(int64_t bytes) {
  bytes_ += bytes;
  if (bytes_ > bounds_.working_bytes) {
    interrupt(ErrorCode::kRequest,
              fmt::format("the output constraint takes more than {} bytes to compile: simplify it "
                          "or lower its repetition counts",
                          bounds_.working_bytes));
  }
  count_step();
}

void count_compile_step() {
  if (current_limit != nullptr) current_limit->count_step();
}

void count_compile_text(size_t bytes) {
  constexpr int64_t kBytesPerByte = 64;
  if (current_limit == nullptr) return;
  current_limit->check();
  current_limit->count_bytes(kBytesPerByte * static_cast<int64_t>(bytes));
}

// What the linker calls in place of functions of xgrammar, and those (names as libstdc++ makes
// them). A member function is called like a function whose first argument is the object.
using SortedVocabulary = std::vector<std::pair<int32_t, std::string>>;
using Automaton = xgrammar::FSMWithStartEnd;
using AutomatonWithSize = xgrammar::FSMWithStartEndWithSize;
using Builder = xgrammar::GrammarBuilder;

const SortedVocabulary& sorted_vocabulary(const xgrammar::TokenizerInfo* tokens) asm(
    "__real__ZNK8xgrammar13TokenizerInfo21GetSortedDecodedVocabB5cxx11Ev");
int32_t add_sequence(Builder* builder, const std::vector<int32_t>& elements) asm(
    "__real__ZN8xgrammar14GrammarBuilder11AddSequenceERKSt6vectorIiSaIiEE");
int32_t add_choices(Builder* builder, const std::vector<int32_t>& choices) asm(
    "__real__ZN8xgrammar14GrammarBuilder10AddChoicesERKSt6vectorIiSaIiEE");
int32_t add_expression(Builder* builder, const Builder::GrammarExpr& expression) asm(
    "__real__ZN8xgrammar14GrammarBuilder14AddGrammarExprERKNS_7Grammar4Impl11GrammarExprE");
int add_state(xgrammar::FSM* automaton) asm("__real__ZN8xgrammar3FSM8AddStateEv");
AutomatonWithSize
add_to_complete(Automaton* automaton, xgrammar::FSM* complete, std::vector<int>* mapping) asm(
    "__real__ZN8xgrammar15FSMWithStartEnd16AddToCompleteFSMEPNS_3FSMEPSt6vectorIiSaIiEE");
Automaton merge_states(const Automaton* automaton, int max_states) asm(
    "__real__ZNK8xgrammar15FSMWithStartEnd21MergeEquivalentStatesEi");
bool advance(xgrammar::EarleyParser* parser, uint8_t byte,
             bool flag) asm("__real__ZN8xgrammar12EarleyParser7AdvanceEhb");

const SortedVocabulary& sorted_vocabulary_in_bounds(const xgrammar::TokenizerInfo* tokens) asm(
    "__wrap__ZNK8xgrammar13TokenizerInfo21GetSortedDecodedVocabB5cxx11Ev");
int32_t add_sequence_in_bounds(Builder* builder, const std::vector<int32_t>& elements) asm(
    "__wrap__ZN8xgrammar14GrammarBuilder11AddSequenceERKSt6vectorIiSaIiEE");
int32_t add_choices_in_bounds(Builder* builder, const std::vector<int32_t>& choices) asm(
    "__wrap__ZN8xgrammar14GrammarBuilder10AddChoicesERKSt6vectorIiSaIiEE");
int32_t add_expression_in_bounds(Builder* builder, const Builder::GrammarExpr& expression) asm(
    "__wrap__ZN8xgrammar14GrammarBuilder14AddGrammarExprERKNS_7Grammar4Impl11GrammarExprE");
int add_state_in_bounds(xgrammar::FSM* automaton) asm("__wrap__ZN8xgrammar3FSM8AddStateEv");
AutomatonWithSize
add_to_complete_in_bounds(Automaton* automaton, xgrammar::FSM* complete, std::vector<int>* mapping) asm(
    "__wrap__ZN8xgrammar15FSMWithStartEnd16AddToCompleteFSMEPNS_3FSMEPSt6vectorIiSaIiEE");
Automaton merge_states_in_bounds(const Automaton* automaton, int max_states) asm(
    "__wrap__ZNK8xgrammar15FSMWithStartEnd21MergeEquivalentStatesEi");
bool advance_in_bounds(xgrammar::EarleyParser* parser, uint8_t byte,
                       bool flag) asm("__wrap__ZN8xgrammar12EarleyParser7AdvanceEhb");

const SortedVocabulary& sorted_vocabulary_in_bounds(const xgrammar::TokenizerInfo* tokens) {
  if (current_limit != nullptr) current_limit->check();
  return sorted_vocabulary(tokens);
}

int32_t add_sequence_in_bounds(Builder* builder, const std::vector<int32_t>& elements) {
  if (current_limit != nullptr) count_sequence(*current_limit, *builder, elements);
  return add_sequence(builder, elements);
}

int32_t add_choices_in_bounds(Builder* builder, const std::vector<int32_t>& choices) {
  if (current_limit != nullptr) count_choices(*current_limit, *builder, choices);
  return add_choices(builder, choices);
}

int32_t add_expression_in_bounds(Builder* builder, const Builder::GrammarExpr& expression) {
  if (current_limit != nullptr) current_limit->count_bytes(4 * int64_t{expression.size()});
  return add_expression(builder, expression);
}

int add_state_in_bounds(xgrammar::FSM* automaton) {
  constexpr int64_t kBytes = 256;  // with its edges, in the automata that it is copied to
  if (current_limit != nullptr) current_limit->count_bytes(kBytes);
  return add_state(automaton);
}

AutomatonWithSize add_to_complete_in_bounds(Automaton* automaton, xgrammar::FSM* complete,
                                            std::vector<int>* mapping) {
  if (current_limit != nullptr) {
    current_limit->check();
    // A bit for each state, and a copy of it.
    current_limit->count_bytes((int64_t{complete->NumStates()} + automaton->NumStates()) / 4);
  }
  return add_to_complete(automaton, complete, mapping);
}

Automaton merge_states_in_bounds(const Automaton* automaton, int max_states) {
  if (current_limit != nullptr) {
    current_limit->check();
    // With 0 the automaton stays as it is, which matches the same texts.
    if (merging_cost(*automaton) > kMaxMergingCost) max_states = 0;
  }
  return merge_states(automaton, max_states);
}

bool advance_in_bounds(xgrammar::EarleyParser* parser, uint8_t byte, bool flag) {
  count_compile_step();
  return advance(parser, byte, flag);
}

}  // namespace tidemill
