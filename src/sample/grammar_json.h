// JSON values and JSON Schema as grammars.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "sample/grammar_expr.h"
#include "text/json.h"

namespace tidemill {

// Rules of JSON, RFC 8259, narrowed to what every reader takes and to runs that end:
//   white space  after { and [, after : and commas, and before } and ]: nothing, one space, or a
//                line end and at most kMaxIndent spaces
//   numbers      at most 19 digits before the point, 17 behind it, 2 in the exponent
//   strings      surrogate escapes in pairs only
// Objects that do not come from a schema may repeat a key.
class JsonRules {
 public:
  static constexpr int64_t kMaxIndent = 48;

  // Characters of `escaped_only` stand in strings as escapes only, beside those of which JSON
  // demands it; all of them in the basic plane.
  explicit JsonRules(GrammarRules& rules, const CharSet& escaped_only = {});

  Expr space();
  Expr any();
  Expr any_object();
  Expr any_array();
  Expr string() { return string_of(0, -1); }
  Expr integer();
  Expr number();
  static Expr boolean();
  // A string of so many characters, by any of their spellings; max < 0: no limit.
  Expr string_of(int64_t min, int64_t max);
  // This very value, as Python writes it.
  Expr literal(const Json& value) const;
  // The texts of a grammar of characters as they stand inside a string, each in one spelling.
  Expr escaped(const Expr& characters) const;

  // `"key": value`, the key as it is written in JSON.
  Expr member(Expr key, Expr value);
  // A key, with its quotes, that is none of `names` in any spelling: it has no escapes.
  Expr key_except(const std::vector<std::string_view>& names);
  // `{`, the members with commas between them, `}`: also with none.
  Expr object_of(Expr member);
  Expr array_of(Expr item, int64_t min, int64_t max);  // max < 0: no limit

 private:
  Expr once(std::optional<int32_t>& id, Expr (JsonRules::*make)());
  Expr make_space();
  Expr make_any();
  Expr make_any_object();
  Expr make_any_array();
  Expr make_integer();
  Expr make_number();
  Expr string_character() const;

  Expr escaped(const CharSet& set) const;
  std::string escape(char32_t c) const;

  GrammarRules& rules_;
  CharSet unescaped_;
  std::map<std::pair<int64_t, int64_t>, int32_t> strings_;  // by minimum and maximum
  std::optional<int32_t> space_, any_, object_, array_, integer_, number_;
};

// The texts of a grammar of characters that hold only these.
Expr restricted(const Expr& characters, const CharSet& allowed);

// The part of a schema's values that each way of writing them covers; choice({}) if none.
struct SchemaForms {
  Expr raw_string = choice({});   // strings, the characters as they are
  Expr json_string = choice({});  // strings as JSON text
  Expr other = choice({});        // JSON text of all other values

  Expr json() const { return choice({json_string, other}); }
};

// Which texts can stand where a string is written raw, without quotes or escapes.
struct RawStrings {
  Expr any;                   // all of them
  CharSet characters;         // those that may follow each other in any order
  std::string_view excluded;  // what no text may hold
};

// Reads schemas of one document, whose $refs they may use.
//
// The grammar's documents all satisfy the schema. It is narrower than the schema in that members
// stand in the order of "properties", an object without "additionalProperties" has no others, an
// array has all of its "prefixItems" and, without "items", no others; and "format" is enforced.
//
// Error kRequest with the JSON pointer and the keyword: every keyword that would not be enforced
// and is not a mere annotation (patternProperties, not, if, uniqueItems, multipleOf, ...); allOf
// with more than one schema; oneOf whose alternatives are not told apart by type or by a constant
// member; a $ref to another document; a schema of the wrong form or too deep.
class SchemaReader {
 public:
  // The document and the rules outlive the reader. `raw` is null when no string is written raw.
  SchemaReader(GrammarRules& rules, JsonRules& json, const Json& document, int max_depth,
               const RawStrings* raw = nullptr)
      : rules_(rules), json_(json), document_(document), max_depth_(max_depth), raw_(raw) {}

  // JSON text of the values that satisfy the document.
  Result<Expr> value();

  struct Property {
    std::string name;
    SchemaForms forms;
    bool required = false;
  };
  struct Members {
    std::vector<Property> properties;  // in their order
    std::optional<Expr> additional;    // JSON text of the values of other members, if any may be
  };
  // The members of a document that describes an object, as the parameters of a tool do.
  Result<Members> members();

 private:
  struct Place;  // of a schema in the document

  Result<SchemaForms> forms(const Place& place);
  Result<Expr> json(const Place& place);
  Status finish_references();
  Result<const Json*> resolve(const Place& place) const;
  SchemaForms reference(const Json& target, std::string pointer);
  Result<SchemaForms> alternatives(const Place& place, std::string_view keyword);
  Status check_exclusive(const Place& place) const;
  Result<SchemaForms> constants(const Place& place);
  Result<SchemaForms> typed(const Place& place, std::string_view type);
  SchemaForms string_forms(const Expr& characters) const;
  Result<SchemaForms> string(const Place& place);
  Result<Expr> array(const Place& place);
  Result<Expr> object(const Place& place);
  Result<Members> object_members(const Place& place);

  GrammarRules& rules_;
  JsonRules& json_;
  const Json& document_;
  int max_depth_;
  const RawStrings* raw_;

  struct Reference {
    const Json* target;
    std::string pointer;
    int32_t raw_string, json_string, other;  // rules
  };
  std::vector<Reference> references_;  // those found so far
  std::unordered_map<const Json*, size_t> reference_of_;
  size_t finished_references_ = 0;
};

}  // namespace tidemill
