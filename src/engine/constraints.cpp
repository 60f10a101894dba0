#include "engine/constraints.h"

#include <utility>

#include "text/json.h"

namespace tidemill {
namespace {

// Compiles that may wait for a thread; more are refused at once.
constexpr int64_t kMaxWaiting = 1024;

Result<Tool> read_tool(const Json& entry, size_t index) {
  const Json& function =
      entry.is_object() && entry.contains("function") ? entry["function"] : entry;
  if (!function.is_object() || !function.contains("name") || !function["name"].is_string()) {
    return fail(ErrorCode::kRequest, "constraint: tool {} is no object with a name", index);
  }
  Tool tool{.name = function["name"].get<std::string>()};
  if (function.contains("parameters")) tool.parameters = function["parameters"];
  return tool;
}

GrammarSpec::Kind kind_of(Constraint::Kind kind) {
  switch (kind) {
    case Constraint::Kind::kJsonObject:
      return GrammarSpec::Kind::kJsonObject;
    case Constraint::Kind::kJsonSchema:
      return GrammarSpec::Kind::kJsonSchema;
    case Constraint::Kind::kRegex:
      return GrammarSpec::Kind::kRegex;
    case Constraint::Kind::kEbnf:
      return GrammarSpec::Kind::kEbnf;
    case Constraint::Kind::kToolCalls:
      return GrammarSpec::Kind::kToolCalls;
  }
  return GrammarSpec::Kind::kJsonObject;
}

}  // namespace

Result<GrammarSpec> grammar_spec(const Constraint& constraint, int64_t most) {
  if (static_cast<int64_t>(constraint.text.size()) > most) {
    return fail(ErrorCode::kRequest,
                "the constraint has {} bytes; at most {} are allowed (grammar_source_bytes)",
                constraint.text.size(), most);
  }
  GrammarSpec spec{.kind = kind_of(constraint.kind)};
  spec.strict = constraint.strict;
  spec.parallel = constraint.parallel;
  if (constraint.kind != Constraint::Kind::kToolCalls) {
    spec.text = constraint.text;
    return spec;
  }
  TRY(const Json tools, parse_json(constraint.text));
  if (!tools.is_array() || tools.empty()) {
    return fail(ErrorCode::kRequest, "constraint: tools must be an array of at least one tool");
  }
  for (size_t i = 0; i < tools.size(); ++i) {
    TRY(Tool tool, read_tool(tools[i], i));
    spec.tools.push_back(std::move(tool));
  }
  switch (constraint.choice) {
    case Constraint::Choice::kAuto:
      spec.choice = ToolChoice::kAuto;
      break;
    case Constraint::Choice::kRequired:
      spec.choice = ToolChoice::kRequired;
      break;
    case Constraint::Choice::kNamed:
      spec.choice = ToolChoice::kNamed;
      if (spec.tools.size() != 1) {
        return fail(ErrorCode::kRequest, "constraint: a named choice has 1 tool, not {}",
                    spec.tools.size());
      }
      break;
  }
  return spec;
}

Constraints::Constraints(const Model& model, const Options& options,
                         std::vector<int32_t> end_tokens, std::function<void()> wake)
    : source_bytes_(options.grammar_source_bytes) {
  auto vocabulary =
      GrammarVocabulary::make(model.tokenizer(), model.config().vocab_size, std::move(end_tokens));
  if (!vocabulary) {
    unusable_ = std::move(vocabulary).error();
    return;
  }
  const GrammarLimits limits{.source_bytes = options.grammar_source_bytes,
                             .max_depth = static_cast<int>(options.grammar_depth),
                             .compile_time = std::chrono::milliseconds(options.grammar_compile_ms)};
  compiler_ = std::make_unique<GrammarCompiler>(std::move(*vocabulary), limits,
                                                options.grammar_cache_bytes);
  pool_ = std::make_unique<GrammarPool>(*compiler_, options.grammar_threads, kMaxWaiting);
  pool_->on_done(std::move(wake));
}

Result<GrammarSpec> Constraints::read(const Constraint& constraint) const {
  if (unusable_) return tl::unexpected(*unusable_);
  return grammar_spec(constraint, source_bytes_);
}

Result<GrammarPool::Ticket> Constraints::submit(GrammarSpec spec, Deadline deadline) {
  return pool_->submit(std::move(spec), deadline);
}

void Constraints::cancel(GrammarPool::Ticket ticket) {
  if (pool_) pool_->cancel(ticket);
}

std::vector<GrammarPool::Done> Constraints::take_done() {
  return pool_ ? pool_->take_done() : std::vector<GrammarPool::Done>{};
}

GrammarCompiler::Stats Constraints::stats() const {
  return compiler_ ? compiler_->stats() : GrammarCompiler::Stats{};
}

}  // namespace tidemill
