#include "sample/grammar_json.h"

#include <map>
#include <utility>

#include "text/utf8.h"

namespace tidemill {
namespace {

const CharSet& hex_digits() {
  static const CharSet set{{'0', '9'}, {'A', 'F'}, {'a', 'f'}};
  return set;
}

Expr digit() { return one_of({{'0', '9'}}); }

// \uXXXX of one character of the basic plane, or of a pair of surrogates.
Expr unicode_escape() {
  const Expr hex = one_of(hex_digits());
  const Expr plane = choice({sequence({one_of(hex_digits().without(CharSet::of("dD"))), hex}),
                             sequence({one_of(CharSet::of("dD")), one_of({{'0', '7'}})})});
  const Expr pair =
      sequence({one_of(CharSet::of("dD")), one_of(CharSet::of("89abAB")), hex, hex, text("\\u"),
                one_of(CharSet::of("dD")), one_of(CharSet::of("cdefCDEF")), hex, hex});
  return choice({sequence({plane, hex, hex}), pair});
}

}  // namespace

JsonRules::JsonRules(GrammarRules& rules, const CharSet& escaped_only)
    : rules_(rules),
      unescaped_(CharSet{{0x0, 0x1F}, {'"', '"'}, {'\\', '\\'}}.with(escaped_only).complement()) {}

Expr JsonRules::once(std::optional<int32_t>& id, Expr (JsonRules::*make)()) {
  if (!id) {
    // Before its body is made: it may refer to itself.
    id = rules_.declare();
    rules_.define(*id, (this->*make)());
  }
  return rule(*id);
}

Expr JsonRules::space() { return once(space_, &JsonRules::make_space); }
Expr JsonRules::any() { return once(any_, &JsonRules::make_any); }
Expr JsonRules::any_object() { return once(object_, &JsonRules::make_any_object); }
Expr JsonRules::any_array() { return once(array_, &JsonRules::make_any_array); }
Expr JsonRules::integer() { return once(integer_, &JsonRules::make_integer); }
Expr JsonRules::number() { return once(number_, &JsonRules::make_number); }

Expr JsonRules::boolean() { return choice({text("true"), text("false")}); }

std::string JsonRules::escape(char32_t c) const {
  std::string character;
  append_utf8(character, c);
  std::string spelling;
  append_json_escaped(spelling, character);
  // JSON itself does not demand it.
  if (spelling == character) spelling = fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
  return spelling;
}

Expr JsonRules::literal(const Json& value) const {
  const std::string json = python_json(value);
  std::string out;
  // Outside of strings there is ASCII only, and inside them the rest of ASCII is escaped already.
  for (std::string_view rest = json; !rest.empty();) {
    const Utf8Unit unit = next_utf8(rest);
    const std::string_view character = rest.substr(0, unit.size);
    rest.remove_prefix(unit.size);
    if (unit.code_point < 0x80 || unescaped_.contains(unit.code_point)) {
      out += character;
    } else {
      out += escape(unit.code_point);
    }
  }
  return text(out);
}

Expr JsonRules::escaped(const CharSet& set) const {
  const CharSet unescaped = set.without(unescaped_.complement());
  std::vector<Expr> spellings = {one_of(unescaped)};
  const CharSet others = set.without(unescaped_);
  for (const CharSet::Range& range : others.ranges()) {
    for (char32_t c = range.first; c <= range.last; ++c) spellings.push_back(text(escape(c)));
  }
  return choice(std::move(spellings));
}

Expr JsonRules::escaped(const Expr& characters) const {
  if (characters.kind == Expr::Kind::kSet) return escaped(characters.set);
  Expr result = characters;
  for (Expr& part : result.parts) part = escaped(part);
  return result;
}

Expr JsonRules::make_space() {
  return choice({text(""), text(" "), sequence({text("\n"), repeat(text(" "), 0, kMaxIndent)})});
}

Expr JsonRules::make_any() {
  return choice({any_object(), any_array(), string(), number(), boolean(), text("null")});
}

Expr JsonRules::make_any_object() { return object_of(member(string(), any())); }

Expr JsonRules::make_any_array() { return array_of(any(), 0, -1); }

Expr JsonRules::string_of(int64_t min, int64_t max) {
  const auto [found, is_new] = strings_.try_emplace({min, max}, 0);
  if (is_new) {
    found->second =
        rules_.add(sequence({text("\""), repeat(string_character(), min, max), text("\"")}));
  }
  return rule(found->second);
}

Expr JsonRules::make_integer() {
  return choice(
      {text("0"), sequence({optional(text("-")), one_of({{'1', '9'}}), repeat(digit(), 0, 18)})});
}

Expr JsonRules::make_number() {
  const Expr whole = choice({text("0"), sequence({one_of({{'1', '9'}}), repeat(digit(), 0, 18)})});
  const Expr fraction = sequence({text("."), repeat(digit(), 1, 17)});
  const Expr exponent = sequence(
      {one_of(CharSet::of("eE")), optional(one_of(CharSet::of("+-"))), repeat(digit(), 1, 2)});
  return sequence({optional(text("-")), whole, optional(fraction), optional(exponent)});
}

// Not a rule: a string has to be one chain of rules (EbnfWriter).
Expr JsonRules::string_character() const {
  return choice({one_of(unescaped_),
                 sequence({text("\\"), choice({one_of(CharSet::of("\"\\/bfnrt")),
                                               sequence({text("u"), unicode_escape()})})})});
}

Expr JsonRules::member(Expr key, Expr value) {
  return sequence({std::move(key), text(":"), space(), std::move(value)});
}

// A rule for each beginning that the names share: the key ends here, unless this is a name; or it
// goes on with a character that no name has here; or with one that leads to another beginning.
Expr JsonRules::key_except(const std::vector<std::string_view>& names) {
  struct Beginning {
    int32_t rule = 0;
    bool is_name = false;
    std::map<char32_t, size_t> next = {};
  };
  std::vector<Beginning> beginnings = {{rules_.declare()}};
  for (std::string_view name : names) {
    size_t at = 0;
    while (!name.empty()) {
      const Utf8Unit unit = next_utf8(name);
      name.remove_prefix(unit.size);
      const auto [found, is_new] =
          beginnings[at].next.try_emplace(unit.code_point, beginnings.size());
      at = found->second;
      if (is_new) beginnings.push_back({rules_.declare()});
    }
    beginnings[at].is_name = true;
  }
  for (const Beginning& beginning : beginnings) {
    std::vector<Expr> parts;
    if (!beginning.is_name) parts.push_back(text("\""));
    std::vector<CharSet::Range> taken;
    for (const auto& [character, next] : beginning.next) {
      taken.push_back({character, character});
      if (!unescaped_.contains(character)) continue;
      parts.push_back(sequence({one_of({{character, character}}), rule(beginnings[next].rule)}));
    }
    const CharSet others = unescaped_.without(CharSet(std::move(taken)));
    parts.push_back(sequence({one_of(others), repeat(one_of(unescaped_), 0, -1), text("\"")}));
    rules_.define(beginning.rule, choice(std::move(parts)));
  }
  return sequence({text("\""), rule(beginnings[0].rule)});
}

Expr JsonRules::object_of(Expr member) {
  const Expr next = rule(rules_.add(std::move(member)));
  const Expr members = sequence({next, repeat(sequence({text(","), space(), next}), 0, -1)});
  return sequence({text("{"), choice({space(), sequence({space(), members, space()})}), text("}")});
}

Expr JsonRules::array_of(Expr item, int64_t min, int64_t max) {
  if (max == 0) return sequence({text("["), space(), text("]")});
  const Expr next = rule(rules_.add(std::move(item)));
  const Expr items = sequence(
      {space(), next,
       repeat(sequence({text(","), space(), next}), min == 0 ? 0 : min - 1, max < 0 ? -1 : max - 1),
       space()});
  return sequence({text("["), min == 0 ? choice({space(), items}) : items, text("]")});
}

Expr restricted(const Expr& characters, const CharSet& allowed) {
  Expr result = characters;
  if (characters.kind == Expr::Kind::kSet) {
    result.set = characters.set.without(allowed.complement());
  }
  for (Expr& part : result.parts) part = restricted(part, allowed);
  return result;
}

}  // namespace tidemill
