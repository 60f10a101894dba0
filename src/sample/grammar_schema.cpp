// SchemaReader of grammar_json.h.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "sample/grammar_deadline.h"
#include "sample/grammar_json.h"
#include "sample/grammar_number.h"
#include "sample/grammar_regex.h"

namespace tidemill {
namespace {

using Words = std::vector<std::string_view>;

// Say something about the values, but restrict nothing.
const Words kAnnotations = {"$anchor",     "$comment",      "$defs",   "$id",
                            "$schema",     "definitions",   "default", "deprecated",
                            "description", "discriminator", "example", "examples",
                            "id",          "readOnly",      "title",   "writeOnly"};
// Say all that a schema says; at most one of them, and nothing beside it.
const Words kWholeKeywords = {"$ref", "const", "enum", "anyOf", "oneOf", "allOf"};

// Each length is a state in which most of the vocabulary may follow: 20 ms to compile.
constexpr int64_t kMaxStringLength = 128;

struct TypeKeywords {
  std::string_view type;
  Words keywords;
};
const std::array<TypeKeywords, 7> kTypes = {{
    {"object", {"properties", "required", "additionalProperties"}},
    {"array", {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}},
    {"string", {"pattern", "format", "minLength", "maxLength"}},
    {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
    {"integer", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}},
    {"boolean", {}},
    {"null", {}},
}};

struct Format {
  std::string_view name;
  std::string_view regex;
};
constexpr std::string_view kDate = "\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\\d|2[0-8])";
constexpr Format kFormats[] = {
    // Days 29 to 31 would need the calendar: every month has the others.
    {"date", kDate},
    {"time", "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,6})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)"},
    {"date-time",
     "\\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\\d|2[0-8])T([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,6})?"
     "(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)"},
    {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
    {"email",
     "[A-Za-z0-9_%+-]+(\\.[A-Za-z0-9_%+-]+)*@[A-Za-z0-9]+(-+[A-Za-z0-9]+)*"
     "(\\.[A-Za-z0-9]+(-+[A-Za-z0-9]+)*)+"},
    {"ipv4", "((25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)\\.){3}(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"},
    {"uri", "[a-z][a-z0-9+.-]*:(//)?[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]+"},
};

bool holds(const Words& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool is_of_type(const Json& value, std::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  // An integer too long for 64 bits is kept as a binary value (text/json.h).
  if (type == "integer") return value.is_number_integer() || value.is_binary();
  return value.is_number() || value.is_binary();
}

std::string pointer_step(std::string_view key) {
  std::string step = "/";
  for (const char c : key) {
    if (c == '~') {
      step += "~0";
    } else if (c == '/') {
      step += "~1";
    } else {
      step += c;
    }
  }
  return step;
}

}  // namespace

struct SchemaReader::Place {
  const Json& schema;
  std::string pointer = "#";
  int depth = 0;

  Place at(std::string_view key) const { return child(schema.at(std::string(key)), key); }
  Place child(const Json& value, std::string_view key) const {
    return {value, pointer + pointer_step(key), depth + 1};
  }
  bool has(std::string_view keyword) const { return schema.contains(std::string(keyword)); }

  template <typename... Args>
  tl::unexpected<Error> error(fmt::format_string<Args...> what, Args&&... args) const {
    return fail(ErrorCode::kRequest, "JSON schema, {}: {}", pointer,
                fmt::format(what, std::forward<Args>(args)...));
  }

  // A count of things; `missing` without the keyword.
  Result<int64_t> count(std::string_view keyword, int64_t missing) const {
    if (!has(keyword)) return missing;
    const Json& value = schema.at(std::string(keyword));
    if (!value.is_number_integer() || value < 0 || value > std::numeric_limits<int32_t>::max()) {
      return error("\"{}\" is a number from 0 to {}", keyword, std::numeric_limits<int32_t>::max());
    }
    return value.get<int64_t>();
  }

  // Types that a value may have by "type"; without it, those that the keywords are about.
  Result<Words> types() const;
  Status check_keywords(const Words& types) const;
};

Result<Words> SchemaReader::Place::types() const {
  Words types;
  if (!has("type")) {
    for (const TypeKeywords& type : kTypes) {
      const bool is_meant = std::any_of(type.keywords.begin(), type.keywords.end(),
                                        [&](std::string_view keyword) { return has(keyword); });
      // "number" includes the integers.
      if (is_meant && type.type != "integer") types.push_back(type.type);
    }
    return types;
  }
  const Json& value = schema.at("type");
  const auto take = [&](const Json& name) -> Status {
    for (const TypeKeywords& type : kTypes) {
      if (!name.is_string() || name.get_ref<const std::string&>() != type.type) continue;
      types.push_back(type.type);
      return {};
    }
    return error("unknown type {}", python_json(name));
  };
  if (!value.is_array()) {
    CHECK_OK(take(value));
    return types;
  }
  for (const Json& name : value) CHECK_OK(take(name));
  if (types.empty()) return error("\"type\" is empty: no value satisfies it");
  return types;
}

Status SchemaReader::Place::check_keywords(const Words& types) const {
  std::string_view whole;
  for (const std::string_view keyword : kWholeKeywords) {
    if (!has(keyword)) continue;
    if (!whole.empty()) return error("\"{}\" beside \"{}\" is not supported", keyword, whole);
    whole = keyword;
  }
  for (const auto& [keyword, value] : schema.items()) {
    if (keyword == whole || holds(kAnnotations, keyword) || keyword.starts_with("x-")) continue;
    const bool is_list = whole == "enum" || whole == "const";
    if (!whole.empty() && !(is_list && keyword == "type")) {
      return error("\"{}\" beside \"{}\" is not supported", keyword, whole);
    }
    if (keyword == "type") continue;
    bool is_known = false;
    bool applies = false;
    for (const TypeKeywords& type : kTypes) {
      if (!holds(type.keywords, keyword)) continue;
      is_known = true;
      applies |= holds(types, type.type);
    }
    if (!is_known) return error("the keyword \"{}\" is not supported", keyword);
    if (!applies) return error("\"{}\" says nothing about the type given", keyword);
  }
  return {};
}

Result<Expr> SchemaReader::value() {
  TRY(Expr expr, json(Place{document_}));
  CHECK_OK(finish_references());
  return expr;
}

Result<SchemaReader::Members> SchemaReader::members() {
  const Json* schema = &document_;
  for (int hop = 0; schema->is_object() && schema->contains("$ref"); ++hop) {
    if (hop > max_depth_) return Place{document_}.error("\"$ref\" leads nowhere");
    TRY(schema, resolve(Place{*schema}));
  }
  const Place place{*schema};
  if (!schema->is_object()) return place.error("the parameters of a tool are an object");
  TRY(const Words types, place.types());
  if (types.size() > 1 || (types.size() == 1 && types[0] != "object")) {
    return place.error("the parameters of a tool are an object");
  }
  for (const std::string_view keyword : kWholeKeywords) {
    if (place.has(keyword)) {
      return place.error("\"{}\" at the top of a tool's parameters is not supported", keyword);
    }
  }
  CHECK_OK(place.check_keywords({"object"}));
  TRY(Members members, object_members(place));
  CHECK_OK(finish_references());
  return members;
}

// References are read after the place that they were found at, so that a chain of them takes no
// stack, and a schema may refer to itself.
Status SchemaReader::finish_references() {
  for (; finished_references_ < references_.size(); ++finished_references_) {
    // A copy: reading finds more of them.
    const Reference reference = references_[finished_references_];
    TRY(SchemaForms forms, this->forms(Place{*reference.target, reference.pointer}));
    rules_.define(reference.raw_string, std::move(forms.raw_string));
    rules_.define(reference.json_string, std::move(forms.json_string));
    rules_.define(reference.other, std::move(forms.other));
  }
  return {};
}

SchemaForms SchemaReader::reference(const Json& target, std::string pointer) {
  const auto [found, is_new] = reference_of_.try_emplace(&target, references_.size());
  if (is_new) {
    references_.push_back(
        {&target, std::move(pointer), rules_.declare(), rules_.declare(), rules_.declare()});
  }
  const Reference& known = references_[found->second];
  return {rule(known.raw_string), rule(known.json_string), rule(known.other)};
}

Result<const Json*> SchemaReader::resolve(const Place& place) const {
  count_compile_step();
  const Json& uri = place.schema.at("$ref");
  if (!uri.is_string()) return place.error("\"$ref\" is a string");
  const std::string& text = uri.get_ref<const std::string&>();
  if (text.empty() || text[0] != '#') {
    return place.error("\"$ref\": \"{}\" is not in this document (#/...)", text);
  }
  const Json* target = nullptr;
  try {
    const nlohmann::json_pointer<std::string> pointer(text.substr(1));
    if (document_.contains(pointer)) target = &document_.at(pointer);
  } catch (const Json::exception&) {
    // Not a JSON pointer: there is nothing there.
  }
  if (target == nullptr) return place.error("\"$ref\": there is no \"{}\"", text);
  return target;
}

Result<Expr> SchemaReader::json(const Place& place) {
  TRY(const SchemaForms forms, this->forms(place));
  return forms.json();
}

Result<SchemaForms> SchemaReader::forms(const Place& place) {
  count_compile_step();
  if (place.depth > max_depth_) return place.error("nested deeper than {}", max_depth_);
  const Json& schema = place.schema;
  if (schema.is_boolean() && !schema.get<bool>()) return SchemaForms{};
  const bool is_any = schema.is_boolean();
  if (!is_any && !schema.is_object()) return place.error("a schema is an object or a boolean");

  Words types;
  if (!is_any) {
    TRY(types, place.types());
    CHECK_OK(place.check_keywords(types));
    if (place.has("$ref")) {
      TRY(const Json* target, resolve(place));
      return reference(*target, schema.at("$ref").get<std::string>());
    }
    if (place.has("enum") || place.has("const")) return constants(place);
    for (const std::string_view keyword : {"anyOf", "oneOf", "allOf"}) {
      if (place.has(keyword)) return alternatives(place, keyword);
    }
  }
  if (types.empty()) types = {"object", "array", "string", "number", "boolean", "null"};
  if (types.size() == 1) return typed(place, types[0]);
  SchemaForms all;
  for (const std::string_view type : types) {
    TRY(SchemaForms one, is_any ? typed(Place{Json::object(), place.pointer, place.depth}, type)
                                : typed(place, type));
    all.raw_string.parts.push_back(std::move(one.raw_string));
    all.json_string.parts.push_back(std::move(one.json_string));
    all.other.parts.push_back(std::move(one.other));
  }
  return all;
}

Result<SchemaForms> SchemaReader::alternatives(const Place& place, std::string_view keyword) {
  const Place list = place.at(keyword);
  if (!list.schema.is_array() || list.schema.empty()) {
    return place.error("\"{}\" is a list of schemas", keyword);
  }
  if (keyword == "allOf" && list.schema.size() > 1) {
    return place.error("\"allOf\" with more than one schema is not supported");
  }
  if (keyword == "oneOf") CHECK_OK(check_exclusive(list));
  SchemaForms all;
  for (size_t i = 0; i < list.schema.size(); ++i) {
    TRY(SchemaForms one, forms(list.child(list.schema[i], std::to_string(i))));
    all.raw_string.parts.push_back(std::move(one.raw_string));
    all.json_string.parts.push_back(std::move(one.json_string));
    all.other.parts.push_back(std::move(one.other));
  }
  return all;
}

// Of two alternatives, does none of the values satisfy both, as far as types and required members
// with constant values tell?
Status SchemaReader::check_exclusive(const Place& list) const {
  std::vector<const Json*> schemas;
  for (const Json& schema : list.schema) {
    const Json* target = &schema;
    for (int hop = 0; target->is_object() && target->contains("$ref"); ++hop) {
      if (hop > max_depth_) return list.error("\"$ref\" leads nowhere");
      TRY(target, resolve(Place{*target, list.pointer}));
    }
    schemas.push_back(target);
  }
  const auto values_of = [](const Json& schema) -> Json {
    if (schema.is_object() && schema.contains("const")) return Json::array({schema.at("const")});
    if (schema.is_object() && schema.contains("enum")) return schema.at("enum");
    return nullptr;
  };
  const auto are_disjoint = [](const Json& a, const Json& b) {
    if (!a.is_array() || !b.is_array()) return false;
    return std::none_of(a.begin(), a.end(), [&](const Json& value) {
      count_compile_step();
      return std::find(b.begin(), b.end(), value) != b.end();
    });
  };
  const auto type_of = [](const Json& schema) -> std::string {
    if (!schema.is_object() || !schema.contains("type") || !schema.at("type").is_string())
      return {};
    const std::string type = schema.at("type").get<std::string>();
    return type == "integer" ? "number" : type;
  };
  const auto requires_member = [](const Json& schema, const std::string& name) {
    if (!schema.contains("required") || !schema.at("required").is_array()) return false;
    const Json& required = schema.at("required");
    return std::find(required.begin(), required.end(), name) != required.end();
  };
  const auto are_exclusive = [&](const Json& a, const Json& b) {
    count_compile_step();
    if (!type_of(a).empty() && !type_of(b).empty() && type_of(a) != type_of(b)) return true;
    if (are_disjoint(values_of(a), values_of(b))) return true;
    if (type_of(a) != "object" || type_of(b) != "object") return false;
    if (!a.contains("properties") || !a.at("properties").is_object()) return false;
    if (!b.contains("properties") || !b.at("properties").is_object()) return false;
    for (const auto& [name, schema] : a.at("properties").items()) {
      count_compile_step();
      if (!b.at("properties").contains(name)) continue;
      if (!requires_member(a, name) || !requires_member(b, name)) continue;
      if (are_disjoint(values_of(schema), values_of(b.at("properties").at(name)))) return true;
    }
    return false;
  };
  for (size_t i = 0; i < schemas.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (are_exclusive(*schemas[i], *schemas[j])) continue;
      return list.error(
          "schemas {} and {} may both be satisfied; use \"anyOf\", or tell them "
          "apart by type or by a required constant",
          j, i);
    }
  }
  return {};
}

Result<SchemaForms> SchemaReader::constants(const Place& place) {
  const bool is_enum = place.has("enum");
  const Json values = is_enum ? place.schema.at("enum") : Json::array({place.schema.at("const")});
  if (!values.is_array() || values.empty()) return place.error("\"enum\" is a list of values");
  TRY(const Words types, place.types());
  SchemaForms forms;
  for (const Json& value : values) {
    const bool fits = types.empty() ||
                      std::any_of(types.begin(), types.end(),
                                  [&](std::string_view type) { return is_of_type(value, type); });
    if (!fits) continue;
    if (!value.is_string()) {
      forms.other.parts.push_back(json_.literal(value));
      continue;
    }
    forms.json_string.parts.push_back(json_.literal(value));
    const std::string& characters = value.get_ref<const std::string&>();
    if (raw_ != nullptr && characters.find(raw_->excluded) == std::string::npos) {
      forms.raw_string.parts.push_back(text(characters));
    }
  }
  if (forms.json_string.parts.empty() && forms.other.parts.empty()) {
    return place.error("no value of \"{}\" has the type given", is_enum ? "enum" : "const");
  }
  return forms;
}

Result<SchemaForms> SchemaReader::typed(const Place& place, std::string_view type) {
  if (type == "string") return string(place);
  SchemaForms forms;
  if (type == "object") {
    TRY(forms.other, object(place));
  } else if (type == "array") {
    TRY(forms.other, array(place));
  } else if (type == "boolean") {
    forms.other = JsonRules::boolean();
  } else if (type == "null") {
    forms.other = text("null");
  } else {
    const bool is_integer = type == "integer";
    TRY(std::optional<Expr> bounded, bounded_number(place.schema, place.pointer, is_integer));
    forms.other = bounded ? *std::move(bounded) : is_integer ? json_.integer() : json_.number();
  }
  return forms;
}

// `characters`: of the string, without quotes and escapes.
SchemaForms SchemaReader::string_forms(const Expr& characters) const {
  SchemaForms forms;
  forms.json_string = sequence({text("\""), json_.escaped(characters), text("\"")});
  if (raw_ != nullptr) forms.raw_string = restricted(characters, raw_->characters);
  return forms;
}

Result<SchemaForms> SchemaReader::string(const Place& place) {
  for (const std::string_view keyword : {"pattern", "format"}) {
    if (!place.has(keyword)) continue;
    for (const std::string_view other : {"minLength", "maxLength", "format"}) {
      if (other != keyword && place.has(other)) {
        return place.error("\"{}\" beside \"{}\" is not supported", other, keyword);
      }
    }
    const Json& value = place.schema.at(std::string(keyword));
    if (!value.is_string()) return place.error("\"{}\" is a string", keyword);
    std::string_view regex = value.get_ref<const std::string&>();
    if (keyword == "format") {
      const auto* const format = std::find_if(std::begin(kFormats), std::end(kFormats),
                                              [&](const Format& f) { return f.name == regex; });
      if (format == std::end(kFormats)) {
        return place.error("the format \"{}\" is not supported", regex);
      }
      regex = format->regex;
    }
    auto expr = regex_to_expr(regex, keyword == "format" ? RegexMatch::kWhole : RegexMatch::kSearch,
                              max_depth_);
    if (!expr) return place.error("\"{}\": {}", keyword, expr.error().message);
    return string_forms(*expr);
  }

  TRY(const int64_t min, place.count("minLength", 0));
  TRY(const int64_t max, place.count("maxLength", -1));
  if (max >= 0 && min > max) return place.error("minLength {} is above maxLength {}", min, max);
  if (std::max(min, max) > kMaxStringLength) {
    return place.error("a minLength or maxLength above {} is not supported", kMaxStringLength);
  }
  SchemaForms forms;
  if (min == 0 && max < 0) {
    forms.json_string = json_.string();
    if (raw_ != nullptr) forms.raw_string = raw_->any;
    return forms;
  }
  forms.json_string = json_.string_of(min, max);
  if (raw_ != nullptr) forms.raw_string = repeat(one_of(raw_->characters), min, max);
  return forms;
}

Result<Expr> SchemaReader::array(const Place& place) {
  if (place.has("uniqueItems") && place.schema.at("uniqueItems") != false) {
    return place.error("the keyword \"uniqueItems\" is not supported");
  }
  TRY(const int64_t min, place.count("minItems", 0));
  TRY(const int64_t max, place.count("maxItems", -1));
  if (max >= 0 && min > max) return place.error("minItems {} is above maxItems {}", min, max);
  Expr item = choice({});
  if (place.has("items")) {
    TRY(item, json(place.at("items")));
  } else if (!place.has("prefixItems")) {
    item = json_.any();
  }
  if (!place.has("prefixItems")) return json_.array_of(std::move(item), min, max);

  const Place prefix = place.at("prefixItems");
  if (!prefix.schema.is_array() || prefix.schema.empty()) {
    return place.error("\"prefixItems\" is a list of schemas");
  }
  const auto count = static_cast<int64_t>(prefix.schema.size());
  if (max >= 0 && max < count) {
    return place.error("maxItems {} below the {} \"prefixItems\" is not supported", max, count);
  }
  std::vector<Expr> parts = {text("["), json_.space()};
  for (size_t i = 0; i < prefix.schema.size(); ++i) {
    if (i > 0) {
      parts.push_back(text(","));
      parts.push_back(json_.space());
    }
    TRY(Expr part, json(prefix.child(prefix.schema[i], std::to_string(i))));
    parts.push_back(std::move(part));
  }
  parts.push_back(repeat(sequence({text(","), json_.space(), std::move(item)}),
                         std::max<int64_t>(min - count, 0), max < 0 ? -1 : max - count));
  parts.push_back(json_.space());
  parts.push_back(text("]"));
  return sequence(std::move(parts));
}

Result<SchemaReader::Members> SchemaReader::object_members(const Place& place) {
  Members members;
  const Json none = Json::object();
  const Json& properties = place.has("properties") ? place.schema.at("properties") : none;
  if (!properties.is_object()) return place.error("\"properties\" is an object");
  for (const auto& [name, schema] : properties.items()) {
    const Place inside{schema, place.pointer + "/properties" + pointer_step(name), place.depth + 1};
    TRY(SchemaForms forms, this->forms(inside));
    members.properties.push_back({name, std::move(forms), false});
  }
  if (place.has("additionalProperties")) {
    const Place additional = place.at("additionalProperties");
    if (additional.schema != false) {
      TRY(members.additional, json(additional));
    }
  } else if (!place.has("properties") && !place.has("required")) {
    members.additional = json_.any();
  }

  const Json& required = place.has("required") ? place.schema.at("required") : none;
  if (place.has("required") && !required.is_array()) return place.error("\"required\" is a list");
  for (const Json& name : required) {
    count_compile_step();
    if (!name.is_string()) return place.error("\"required\" is a list of names");
    const auto property = std::find_if(
        members.properties.begin(), members.properties.end(),
        [&](const Property& p) { return p.name == name.get_ref<const std::string&>(); });
    if (property == members.properties.end()) {
      return place.error("the required member {} is not in \"properties\"", python_json(name));
    }
    property->required = true;
  }
  return members;
}

// Rules from the last member to the first, so that the grammar grows linearly:
//   rest i   what may follow when a member stands before property i
//   first i  what may follow when none does
Result<Expr> SchemaReader::object(const Place& place) {
  TRY(Members members, object_members(place));
  std::vector<Expr> keys;
  for (const Property& property : members.properties) {
    keys.push_back(json_.literal(Json(property.name)));
  }
  const Expr comma = sequence({text(","), json_.space()});
  Expr rest = text("");
  Expr first = json_.space();
  if (members.additional) {
    Words names;
    for (const Property& property : members.properties) names.push_back(property.name);
    const Expr member =
        rule(rules_.add(json_.member(json_.key_except(names), *std::move(members.additional))));
    rest = repeat(sequence({comma, member}), 0, -1);
    first = choice({first, sequence({json_.space(), member, rest, json_.space()})});
  }
  for (size_t i = members.properties.size(); i-- > 0;) {
    Property& property = members.properties[i];
    const Expr member = rule(rules_.add(json_.member(keys[i], property.forms.json())));
    const Expr rest_after = rule(rules_.add(std::move(rest)));
    const Expr with_member = sequence({json_.space(), member, rest_after, json_.space()});
    first =
        property.required ? with_member : choice({with_member, rule(rules_.add(std::move(first)))});
    const Expr next = sequence({comma, member});
    rest = sequence({property.required ? next : optional(next), rest_after});
  }
  return sequence({text("{"), std::move(first), text("}")});
}

}  // namespace tidemill
