#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <vector>

#include "sample/grammar_ebnf.h"

// Headers inside xgrammar (cmake/xgrammar.cmake lets this file see them).
#include <grammar_impl.h>

namespace tidemill {
namespace {

using Impl = xgrammar::Grammar::Impl;
using ExprType = Impl::GrammarExprType;

// Calls visit(rule) for each rule that a text of the alternative needs. xgrammar has made rules of
// what was nested, so that its parts are simple.
template <typename Visit>
void for_each_call(const Impl& grammar, int32_t id, const Visit& visit) {
  const Impl::GrammarExpr expr = grammar.GetGrammarExpr(id);
  if (expr.type == ExprType::kRuleRef) visit(expr[0]);
  if (expr.type == ExprType::kRepeat && expr[1] > 0) visit(expr[0]);
  if (expr.type != ExprType::kSequence) return;
  for (const int32_t part : expr) for_each_call(grammar, part, visit);
}

// The rules that a text can match. Each alternative waits for the calls in it that are not known
// to end yet; when the last of them is known, so is its rule: linear in the grammar.
std::vector<bool> ending_rules(const Impl& grammar) {
  struct Alternative {
    int32_t rule;
    int64_t waits_for = 0;
  };
  const auto count = static_cast<size_t>(grammar.NumRules());
  std::vector<Alternative> alternatives;
  std::vector<std::vector<size_t>> waiting(count);  // alternatives, by the rule that they call
  std::vector<bool> ends(count, false);
  std::vector<int32_t> found;
  const auto mark = [&](int32_t rule) {
    if (ends[static_cast<size_t>(rule)]) return;
    ends[static_cast<size_t>(rule)] = true;
    found.push_back(rule);
  };
  const auto add = [&](int32_t rule, int32_t id) {
    Alternative alternative{rule};
    for_each_call(grammar, id, [&](int32_t called) {
      ++alternative.waits_for;
      waiting[static_cast<size_t>(called)].push_back(alternatives.size());
    });
    alternatives.push_back(alternative);
    if (alternative.waits_for == 0) mark(rule);
  };
  for (int32_t rule = 0; rule < grammar.NumRules(); ++rule) {
    const int32_t body = grammar.GetRule(rule).body_expr_id;
    const Impl::GrammarExpr expr = grammar.GetGrammarExpr(body);
    if (expr.type != ExprType::kChoices) {
      add(rule, body);
      continue;
    }
    for (const int32_t choice : expr) add(rule, choice);
  }
  while (!found.empty()) {
    const int32_t rule = found.back();
    found.pop_back();
    for (const size_t index : waiting[static_cast<size_t>(rule)]) {
      if (--alternatives[index].waits_for == 0) mark(alternatives[index].rule);
    }
  }
  return ends;
}

}  // namespace

Status check_ends(const xgrammar::Grammar& grammar) {
  const Impl& impl = *grammar.operator->();
  const std::vector<bool> ends = ending_rules(impl);
  const auto endless = std::find(ends.begin(), ends.end(), false);
  if (endless == ends.end()) return {};
  return fail(ErrorCode::kRequest,
              "grammar: the rule \"{}\" never ends, as each of its alternatives calls it again: no "
              "text matches it",
              impl.GetRule(static_cast<int32_t>(endless - ends.begin())).name);
}

}  // namespace tidemill
