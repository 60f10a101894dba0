// What an answer has to look like, by OpenAI's and vLLM's names.
#include <array>
#include <utility>

#include "serve/generation.h"

namespace tidemill {
namespace {

using Kind = Constraint::Kind;

// Any one of the strings, as a grammar.
Result<std::string> choice_grammar(const Json& choices, const std::string& path) {
  if (!choices.is_array() || choices.empty()) {
    return fail(ErrorCode::kRequest, "{}: expected an array of at least one string", path);
  }
  std::string grammar = "root ::= ";
  for (size_t i = 0; i < choices.size(); ++i) {
    if (!choices[i].is_string() || choices[i].get_ref<const std::string&>().empty()) {
      return fail(ErrorCode::kRequest, "{}[{}]: expected a string that is not empty", path, i);
    }
    if (i > 0) grammar += " | ";
    grammar += '"';
    append_json_escaped(grammar, choices[i].get_ref<const std::string&>());
    grammar += '"';
  }
  return grammar;
}

// A schema, as an object or as its text.
Result<std::string> schema_text(const Json& schema, const std::string& path) {
  if (schema.is_object()) return python_json(schema);
  if (schema.is_string()) return schema.get<std::string>();
  return fail(ErrorCode::kRequest, "{}: expected a JSON Schema, as an object or as text", path);
}

struct GuidedField {
  std::string_view name;
  Kind kind;
};
constexpr auto kGuided = std::to_array<GuidedField>({{"guided_json", Kind::kJsonSchema},
                                                     {"guided_regex", Kind::kRegex},
                                                     {"guided_grammar", Kind::kEbnf},
                                                     {"guided_choice", Kind::kEbnf}});
constexpr auto kStructured = std::to_array<GuidedField>({{"json", Kind::kJsonSchema},
                                                         {"regex", Kind::kRegex},
                                                         {"grammar", Kind::kEbnf},
                                                         {"choice", Kind::kEbnf},
                                                         {"json_object", Kind::kJsonObject}});
constexpr auto kStructuredRead =
    std::to_array<std::string_view>({"json", "regex", "grammar", "choice", "json_object"});
constexpr auto kStructuredFixed =
    std::to_array<FixedField>({{"structural_tag", "[]", "use tools"},
                               {"whitespace_pattern", "[]", ""},
                               {"disable_fallback", "[true,false]", ""},
                               {"disable_any_whitespace", "[false]", ""},
                               {"disable_additional_properties", "[false]", ""}});

Result<std::optional<Constraint>> read_one(const Fields& fields, const GuidedField& field) {
  const Json* value = fields.find(field.name);
  if (!value) return std::nullopt;
  const std::string path = fields.path(field.name);
  Constraint constraint{.kind = field.kind};
  if (field.kind == Kind::kJsonObject) {
    TRY(const std::optional<bool> wanted, fields.boolean(field.name));
    if (!*wanted) return std::nullopt;
  } else if (field.kind == Kind::kJsonSchema) {
    TRY(constraint.text, schema_text(*value, path));
  } else if (field.name.ends_with("choice")) {
    TRY(constraint.text, choice_grammar(*value, path));
  } else {
    TRY(constraint.text, fields.require_string(field.name));
  }
  return constraint;
}

Result<std::optional<Constraint>> read_response_format(const Fields& body) {
  TRY(const std::optional<Fields> format, body.object("response_format"));
  if (!format) return std::nullopt;
  TRY(const std::string type, format->require_string("type"));
  if (type == "text") return std::nullopt;
  if (type == "json_object") return Constraint{.kind = Kind::kJsonObject};
  if (type != "json_schema") return format->wrong("type", "text, json_object or json_schema");
  TRY(const std::optional<Fields> wrapper, format->object("json_schema"));
  if (!wrapper) return format->wrong("json_schema", "an object");
  TRY(const std::optional<Fields> schema, wrapper->object("schema"));
  if (!schema) return wrapper->wrong("schema", "an object");
  return Constraint{.kind = Kind::kJsonSchema, .text = python_json(schema->json())};
}

// Takes the only one of `names` that is there.
Status read_only(const Fields& fields, std::span<const GuidedField> names,
                 std::optional<Constraint>& constraint, std::string& source) {
  for (const GuidedField& name : names) {
    TRY(std::optional<Constraint> next, read_one(fields, name));
    if (!next) continue;
    if (constraint) {
      return fail(ErrorCode::kRequest, "{}: cannot be combined with {}", fields.path(name.name),
                  source);
    }
    constraint = std::move(next);
    source = fields.path(name.name);
  }
  return {};
}

}  // namespace

Result<std::optional<Constraint>> read_guided(const Fields& body) {
  TRY(std::optional<Constraint> constraint, read_response_format(body));
  std::string source = "response_format";
  CHECK_OK(read_only(body, kGuided, constraint, source));
  TRY(const std::optional<Fields> structured, body.object("structured_outputs"));
  if (structured) {
    // A constraint that is not understood must not become none.
    std::vector<std::string> unknown;
    const std::array<FieldTable, 1> tables = {{{kStructuredRead, kStructuredFixed}}};
    CHECK_OK(check_fields(*structured, tables, unknown));
    if (!unknown.empty()) return fail(ErrorCode::kRequest, "{}: unknown field", unknown.front());
    CHECK_OK(read_only(*structured, kStructured, constraint, source));
  }
  return constraint;
}

}  // namespace tidemill
