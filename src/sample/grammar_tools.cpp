#include "sample/grammar_tools.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "sample/grammar_json.h"

namespace tidemill {
namespace {

constexpr std::string_view kValueEnd = "</｜DSML｜";  // how the reader knows that a value is over
constexpr char32_t kBar = U'｜';

CharSet one(char32_t c) { return {{c, c}}; }

// Any text without kValueEnd, which has '<' at its beginning only. So, wherever a '<' stands, what
// follows is a beginning of kValueEnd and then something that does not continue it: another
// attempt, another character, or the end.
Expr text_without_value_end() {
  std::vector<Expr> attempts;    // proper beginnings of kValueEnd
  std::vector<Expr> departures;  // the same, and a character that neither continues nor restarts it
  const std::u32string end = U"</｜DSML｜";
  std::vector<Expr> begun;
  for (size_t i = 0; i < end.size(); ++i) {
    if (i > 0) {
      attempts.push_back(sequence(begun));
      std::vector<Expr> departure = begun;
      departure.push_back(one_of(one(end[i]).with(one('<')).complement()));
      departures.push_back(sequence(std::move(departure)));
    }
    begun.push_back(one_of(one(end[i])));
  }
  const Expr failed = repeat(choice(std::move(attempts)), 0, -1);
  const Expr character =
      choice({one_of(one('<').complement()), sequence({failed, choice(std::move(departures))})});
  return sequence({repeat(character, 0, -1), failed});
}

class ToolRules {
 public:
  ToolRules(GrammarRules& rules, int32_t marker, const ToolGrammarOptions& options)
      : rules_(rules), json_(rules, one(kBar)), marker_(marker), options_(options) {
    raw_.any = rule(rules_.add(text_without_value_end()));
    raw_.characters = one(kBar).complement();
    raw_.excluded = kValueEnd;
  }

  Status define(const std::vector<Tool>& tools) {
    std::vector<Expr> calls;
    for (const Tool& tool : tools) {
      auto call = this->call(tool);
      if (!call) {
        return fail(call.error().code, "tool \"{}\": {}", tool.name, call.error().message);
      }
      calls.push_back(rule(rules_.add(*std::move(call))));
    }
    const Expr call = choice(std::move(calls));
    std::vector<Expr> parts = {text("\n\n"), open(" calls>\n"), call};
    if (options_.parallel) parts.push_back(repeat(sequence({text("\n"), call}), 0, -1));
    parts.push_back(text("\n"));
    parts.push_back(close(" calls>"));
    rules_.define(0, sequence(std::move(parts)));
    return {};
  }

 private:
  Expr open(std::string_view tag) const { return sequence({text("<"), token(marker_), text(tag)}); }
  Expr close(std::string_view tag) const {
    return sequence({text("</"), token(marker_), text(tag)});
  }

  Result<Expr> call(const Tool& tool) {
    if (!can_be_written(tool.name)) return fail(ErrorCode::kRequest, "the name has quotes");
    Expr parameters;
    if (options_.strict) {
      TRY(parameters, schema_parameters(tool));
    } else {
      parameters = any_parameters();
    }
    return sequence({open(fmt::format(" invoke name=\"{}\">", tool.name)), std::move(parameters),
                     text("\n"), close(" invoke>")});
  }

  // What the tag's reader takes up to the next quote, as it stands.
  static bool can_be_written(std::string_view name) {
    return !name.empty() && std::none_of(name.begin(), name.end(), [](char c) {
      return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20;
    }) && name.find(kValueEnd) == std::string_view::npos;
  }

  // A parameter, with the line end before it; `name` with its quotes.
  Expr parameter(const Expr& name, const Expr& raw_string, const Expr& json) const {
    const Expr value = choice({sequence({text(" string=\"true\">"), raw_string}),
                               sequence({text(" string=\"false\">"), json})});
    return sequence({text("\n"), open(" parameter name="), name, value, close(" parameter>")});
  }

  // One empty line stands for no parameters.
  static Expr none() { return text("\n"); }

  Expr any_parameters() {
    if (!any_parameters_) {
      const CharSet name_characters = CharSet{{0, 0x1F}}.with(CharSet::of("\"\\<>")).complement();
      const Expr name = sequence({text("\""), repeat(one_of(name_characters), 1, -1), text("\"")});
      const Expr one = rule(rules_.add(parameter(name, raw_.any, json_.any())));
      any_parameters_ = rules_.add(choice({none(), repeat(one, 1, -1)}));
    }
    return rule(*any_parameters_);
  }

  Result<Expr> schema_parameters(const Tool& tool) {
    const bool has_schema = !(tool.parameters.is_object() && tool.parameters.empty());
    if (!has_schema) return none();
    SchemaReader reader(rules_, json_, tool.parameters, options_.max_depth, &raw_);
    TRY(const SchemaReader::Members members, reader.members());
    Expr rest = text("");
    Expr first = none();
    if (members.additional) {
      return fail(ErrorCode::kRequest,
                  "JSON schema, #: strict tools take no additionalProperties; set it to false");
    }
    for (size_t i = members.properties.size(); i-- > 0;) {
      const SchemaReader::Property& property = members.properties[i];
      if (!can_be_written(property.name)) {
        return fail(ErrorCode::kRequest, "the parameter {} has quotes in its name",
                    python_json(Json(property.name)));
      }
      const Expr next =
          rule(rules_.add(parameter(text(fmt::format("\"{}\"", property.name)),
                                    property.forms.raw_string, property.forms.other)));
      const Expr rest_after = rule(rules_.add(std::move(rest)));
      const Expr with_next = sequence({next, rest_after});
      first =
          property.required ? with_next : choice({with_next, rule(rules_.add(std::move(first)))});
      rest = sequence({property.required ? next : optional(next), rest_after});
    }
    return first;
  }

  GrammarRules& rules_;
  JsonRules json_;
  int32_t marker_;
  ToolGrammarOptions options_;
  RawStrings raw_;
  std::optional<int32_t> any_parameters_;
};

}  // namespace

Status tool_call_rules(GrammarRules& rules, const std::vector<Tool>& tools, int32_t marker,
                       const ToolGrammarOptions& options) {
  return ToolRules(rules, marker, options).define(tools);
}

}  // namespace tidemill
