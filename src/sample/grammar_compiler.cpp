#include <algorithm>
#include <utility>

#include "sample/grammar_data.h"
#include "sample/grammar_deadline.h"
#include "sample/grammar_ebnf.h"
#include "sample/grammar_json.h"
#include "sample/grammar_regex.h"
#include "sample/grammar_tools.h"

namespace tidemill {
namespace {

using Kind = GrammarSpec::Kind;

// Of a JSON text: without a schema, of any object.
Result<Expr> json_text(GrammarRules& rules, const Json* schema, int max_depth) {
  JsonRules json(rules);
  if (schema == nullptr) return json.any_object();
  return SchemaReader(rules, json, *schema, max_depth).value();
}

// The grammar of an answer in xgrammar's notation.
Result<std::string> to_ebnf(const GrammarSpec& spec, int32_t marker, const GrammarLimits& limits) {
  if (spec.kind == Kind::kEbnf) return checked_ebnf(spec.text, limits.max_depth);
  GrammarRules rules;
  const int32_t root = rules.declare();
  switch (spec.kind) {
    case Kind::kJsonObject: {
      TRY(Expr expr, json_text(rules, nullptr, limits.max_depth));
      rules.define(root, std::move(expr));
      break;
    }
    case Kind::kJsonSchema: {
      TRY(const Json schema, parse_json(spec.text));
      TRY(Expr expr, json_text(rules, &schema, limits.max_depth));
      rules.define(root, std::move(expr));
      break;
    }
    case Kind::kRegex: {
      TRY(Expr expr, regex_to_expr(spec.text, RegexMatch::kWhole, limits.max_depth));
      rules.define(root, std::move(expr));
      break;
    }
    case Kind::kToolCalls:
      CHECK_OK(tool_call_rules(rules, spec.tools, marker,
                               {spec.strict, spec.parallel, limits.max_depth}));
      break;
    case Kind::kEbnf:
      break;
  }
  return rules.to_ebnf(limits.max_positions);
}

int64_t reported_bytes(const xgrammar::CompiledGrammar& compiled) {
  return static_cast<int64_t>(compiled.MemorySizeBytes());
}

struct Compiled {
  xgrammar::CompiledGrammar grammar;
  int64_t bytes;
};

// In two passes: one without tokens, which is fast and shows how large the grammar itself is, and
// one that finds out for each of its states which tokens may follow.
Result<Compiled> compile_ebnf(const std::string& ebnf, const GrammarVocabulary::Data& vocabulary,
                              const GrammarLimits& limits) {
  const auto check_size = [&](int64_t bytes) -> Status {
    if (bytes <= limits.compiled_bytes) return {};
    return fail(ErrorCode::kRequest,
                "the output constraint takes {} bytes when compiled, more than {}: simplify it",
                bytes, limits.compiled_bytes);
  };
  const xgrammar::Grammar grammar = xgrammar::Grammar::FromEBNF(ebnf);
  CHECK_OK(check_ends(grammar));
  const xgrammar::CompiledGrammar bare =
      xgrammar::GrammarCompiler(vocabulary.no_tokens, 1, false).CompileGrammar(grammar);
  // xgrammar counts the automaton that all rules share once more for each rule.
  const std::string rules = bare.GetGrammar().ToString();
  const int64_t bare_bytes =
      reported_bytes(bare) / (std::count(rules.begin(), rules.end(), '\n') + 1);
  CHECK_OK(check_size(bare_bytes));
  xgrammar::CompiledGrammar compiled =
      xgrammar::GrammarCompiler(vocabulary.tokens, 1, false).CompileGrammar(grammar);
  const int64_t bytes = bare_bytes + reported_bytes(compiled) - reported_bytes(bare);
  CHECK_OK(check_size(bytes));
  return Compiled{std::move(compiled), bytes};
}

// `call`, which returns a Result, within the bounds.
template <typename Call>
auto within(CompileBounds bounds, Call call) -> decltype(call()) {
  const CompileLimit limit(std::move(bounds));
  try {
    return catching(call);
  } catch (CompileInterrupted& interrupted) {
    return tl::unexpected(std::move(interrupted.error));
  }
}

// Everything that a compiled grammar depends on; no two specs have the same one.
std::string key_of(const GrammarSpec& spec) {
  std::string key =
      fmt::format("{} {} {} {} {}:{}", static_cast<int>(spec.kind), static_cast<int>(spec.choice),
                  spec.strict, spec.parallel, spec.text.size(), spec.text);
  for (const Tool& tool : spec.tools) {
    const std::string schema = python_json(tool.parameters);
    key += fmt::format(" {}:{} {}:{}", tool.name.size(), tool.name, schema.size(), schema);
  }
  return key;
}

Status check_spec(const GrammarSpec& spec, const GrammarLimits& limits) {
  if (spec.kind == Kind::kToolCalls) {
    if (spec.tools.empty() || spec.choice == ToolChoice::kNone) {
      return fail(ErrorCode::kRequest, "there are no tools to call");
    }
    if (spec.choice == ToolChoice::kNamed && spec.tools.size() != 1) {
      return fail(ErrorCode::kRequest, "a named tool is given alone, not with {} others",
                  spec.tools.size() - 1);
    }
    for (const Tool& tool : spec.tools) {
      if (!is_deeper_than(tool.parameters, kMaxJsonDepth)) continue;
      return fail(ErrorCode::kRequest, "tool \"{}\": the schema is nested deeper than {}",
                  tool.name, kMaxJsonDepth);
    }
  }
  const auto bytes = static_cast<int64_t>(spec.text.size());
  if (bytes > limits.source_bytes) {
    return fail(ErrorCode::kRequest, "the output constraint has {} bytes, more than {}", bytes,
                limits.source_bytes);
  }
  return {};
}

}  // namespace

CompiledGrammar::CompiledGrammar(std::unique_ptr<const Data> data) : data_(std::move(data)) {}
CompiledGrammar::~CompiledGrammar() = default;

int64_t CompiledGrammar::bytes() const { return data_->bytes; }

GrammarCompiler::GrammarCompiler(GrammarVocabulary vocabulary, GrammarLimits limits,
                                 int64_t cache_bytes)
    : vocabulary_(std::move(vocabulary)), limits_(limits), cache_bytes_(cache_bytes) {}

Result<std::shared_ptr<const CompiledGrammar>> GrammarCompiler::compile(const GrammarSpec& spec,
                                                                        Deadline deadline,
                                                                        std::stop_token stop) {
  const Deadline own = Deadline::after(limits_.compile_time);
  CHECK_OK(check_spec(spec, limits_));
  std::string key = key_of(spec);
  if (static_cast<int64_t>(key.size()) > 2 * limits_.source_bytes) {
    return fail(ErrorCode::kRequest, "the schemas of the tools have {} bytes, more than {}",
                key.size(), 2 * limits_.source_bytes);
  }
  if (Grammar found = look_up(key)) return found;
  {
    const std::lock_guard lock(mutex_);
    ++stats_.misses;
  }

  const GrammarVocabulary::Data& data = vocabulary_.data();
  auto compiled = within({deadline.earlier(own), std::move(stop), limits_.working_bytes},
                         [&]() -> Result<Compiled> {
                           TRY(const std::string ebnf, to_ebnf(spec, data.marker, limits_));
                           return compile_ebnf(ebnf, data, limits_);
                         });
  if (!compiled && compiled.error().code == ErrorCode::kDeadline && own.expired()) {
    return fail(ErrorCode::kDeadline,
                "the output constraint was not compiled within the {} ms that it may take: "
                "simplify it",
                limits_.compile_time.count());
  }
  if (!compiled) return tl::unexpected(std::move(compiled).error());
  auto grammar =
      std::make_shared<const CompiledGrammar>(std::make_unique<const CompiledGrammar::Data>(
          CompiledGrammar::Data{spec.kind, spec.choice, vocabulary_.shared(),
                                std::move(compiled->grammar), compiled->bytes}));
  keep(std::move(key), grammar);
  return grammar;
}

GrammarCompiler::Grammar GrammarCompiler::find(const GrammarSpec& spec) {
  return check_spec(spec, limits_) ? look_up(key_of(spec)) : nullptr;
}

GrammarCompiler::Grammar GrammarCompiler::look_up(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) return nullptr;
  ++stats_.hits;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->grammar;
}

void GrammarCompiler::keep(std::string key, const Grammar& grammar) {
  const int64_t bytes = grammar->bytes() + static_cast<int64_t>(key.size());
  const std::lock_guard lock(mutex_);
  // Another thread may have compiled the same; one larger than the cache is not kept.
  if (by_key_.contains(key) || bytes > cache_bytes_) return;
  entries_.push_front({std::move(key), grammar, bytes});
  by_key_.emplace(entries_.front().key, entries_.begin());
  stats_.bytes += bytes;
  while (stats_.bytes > cache_bytes_) {
    const Entry& oldest = entries_.back();
    stats_.bytes -= oldest.bytes;
    ++stats_.evictions;
    by_key_.erase(oldest.key);
    entries_.pop_back();
  }
}

GrammarCompiler::Stats GrammarCompiler::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = stats_;
  stats.entries = static_cast<int64_t>(entries_.size());
  return stats;
}

}  // namespace tidemill
