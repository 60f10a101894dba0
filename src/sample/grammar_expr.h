// Context-free grammars as values: what schemas, regexes and tool lists are turned into, and from
// there into the EBNF text that xgrammar compiles.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tidemill {

// A set of Unicode code points, without surrogates and U+0000, as ranges that are sorted, disjoint
// and not adjacent.
class CharSet {
 public:
  struct Range {
    char32_t first;
    char32_t last;
  };

  CharSet() = default;
  CharSet(std::initializer_list<Range> ranges) : CharSet(std::vector<Range>(ranges)) {}
  explicit CharSet(std::vector<Range> ranges);  // in any order, overlapping or not
  static CharSet all();
  static CharSet of(std::string_view ascii);  // these characters

  CharSet with(const CharSet& other) const;
  CharSet complement() const;
  CharSet without(const CharSet& other) const;
  bool contains(char32_t c) const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

// A node of a grammar. Made by the functions below.
struct Expr {
  enum class Kind {
    kText,      // these bytes, valid UTF-8; "" matches nothing at all
    kSet,       // one character
    kSequence,  // all parts
    kChoice,    // one of the parts; none: cannot be matched
    kRepeat,    // parts[0], min to max times; max < 0: no limit
    kRule,      // the rule `id`
    kToken,     // the token `id`, whatever its bytes are
  } kind = Kind::kText;
  std::string text = {};
  CharSet set = {};
  std::vector<Expr> parts = {};
  int64_t min = 0;
  int64_t max = 0;
  int32_t id = 0;
};

Expr text(std::string_view bytes);
Expr one_of(CharSet set);
Expr sequence(std::vector<Expr> parts);
Expr choice(std::vector<Expr> parts);
Expr repeat(Expr part, int64_t min, int64_t max);
Expr optional(Expr part);
Expr rule(int32_t id);
Expr token(int32_t id);

// A class of EBNF, "[...]", that xgrammar reads as exactly these characters.
std::string ebnf_class(const CharSet& set);

// Rules by number; a rule may refer to rules that are defined later. Rule 0 is the root.
class GrammarRules {
 public:
  // A number for a rule that define() completes; until then the rule cannot be matched.
  int32_t declare();
  void define(int32_t id, Expr body);
  int32_t add(Expr body);

  // kRequest when no text of finite length matches the root, or when the rules have more than
  // `max_positions` places where a character can stand, repetitions written out: what compiling
  // costs grows with them.
  Result<std::string> to_ebnf(int64_t max_positions) const;

 private:
  std::vector<Expr> bodies_;
};

}  // namespace tidemill
