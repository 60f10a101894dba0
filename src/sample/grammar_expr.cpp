#include "sample/grammar_expr.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "sample/grammar_deadline.h"
#include "text/utf8.h"

namespace tidemill {
namespace {

constexpr char32_t kLastCharacter = 0x10FFFF;
// The characters that there are.
constexpr CharSet::Range kCharacters[] = {{0x1, 0xD7FF}, {0xE000, kLastCharacter}};

using Kind = Expr::Kind;

// Saturates far above every limit and far below overflow.
constexpr int64_t kManyPositions = int64_t{1} << 40;

int64_t positions(const Expr& expr) {
  switch (expr.kind) {
    case Kind::kText:
      return static_cast<int64_t>(expr.text.size());
    case Kind::kSet:
    case Kind::kRule:
    case Kind::kToken:
      return 1;
    case Kind::kSequence:
    case Kind::kChoice:
    case Kind::kRepeat:
      break;
  }
  int64_t sum = 0;
  for (const Expr& part : expr.parts) sum = std::min(sum + positions(part), kManyPositions);
  if (expr.kind != Kind::kRepeat) return sum;
  const int64_t times = expr.max < 0 ? expr.min + 1 : expr.max;
  return times > kManyPositions / std::max<int64_t>(sum, 1) ? kManyPositions : sum * times;
}

// Can it be matched, given the rules that can?
bool is_matchable(const Expr& expr, const std::vector<bool>& matchable) {
  const auto can = [&](const Expr& part) { return is_matchable(part, matchable); };
  switch (expr.kind) {
    case Kind::kText:
    case Kind::kToken:
      return true;
    case Kind::kSet:
      return !expr.set.empty();
    case Kind::kRule:
      return matchable[static_cast<size_t>(expr.id)];
    case Kind::kSequence:
      return std::all_of(expr.parts.begin(), expr.parts.end(), can);
    case Kind::kChoice:
      return std::any_of(expr.parts.begin(), expr.parts.end(), can);
    case Kind::kRepeat:
      return expr.min == 0 || can(expr.parts[0]);
  }
  return false;
}

void append_character(std::string& out, char32_t c) {
  const bool is_plain =
      (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == ' ';
  if (is_plain) {
    out += static_cast<char>(c);
  } else {
    out += fmt::format("\\U{:08X}", static_cast<uint32_t>(c));
  }
}

void append_range(std::string& out, const CharSet::Range& range) {
  append_character(out, range.first);
  if (range.last == range.first) return;
  out += '-';
  append_character(out, range.last);
}

bool calls_rules(const Expr& expr) {
  return expr.kind == Kind::kRule || std::any_of(expr.parts.begin(), expr.parts.end(), calls_rules);
}

// Writes a rule right-linear where it can: each expression together with what follows it, so that
// between two rules that are called for there are no calls. A state of xgrammar inside a called
// rule does not know what comes behind it, and every token that reaches the end of that rule has to
// be tried again in each step; a string of JSON, for one, has to be a single chain of rules.
class EbnfWriter {
 public:
  explicit EbnfWriter(const std::vector<bool>& matchable) : matchable_(matchable) {}

  void write_rule(size_t id, const Expr& body) {
    const Alternatives alternatives = with(body, "");
    write_rule(name(id), alternatives);
  }

  std::string take() { return std::move(out_); }

 private:
  // Sequences of elements, as text; "" is the empty sequence.
  using Alternatives = std::vector<std::string>;

  static std::string name(size_t id) { return id == 0 ? "root" : fmt::format("r{}", id); }

  void write_rule(std::string_view name, const Alternatives& alternatives) {
    const size_t begin = out_.size();
    out_ += name;
    std::string_view separator = " ::= ";
    for (const std::string& alternative : alternatives) {
      out_ += separator;
      out_ += alternative.empty() ? "\"\"" : alternative;
      separator = " | ";
    }
    out_ += '\n';
    count_compile_text(out_.size() - begin);
  }

  std::string new_name() { return fmt::format("q{}", helpers_++); }

  // One sequence that stands for the alternatives; short, as it may be used many times.
  std::string joined(const Alternatives& alternatives) {
    constexpr size_t kShort = 24;
    if (alternatives.size() == 1 && alternatives[0].size() <= kShort) return alternatives[0];
    std::string helper = new_name();
    write_rule(helper, alternatives);
    return helper;
  }

  static std::string chain(std::string element, const std::string& rest) {
    if (!rest.empty()) {
      element += ' ';
      element += rest;
    }
    return element;
  }

  // `expr`, then `rest`. What cannot be matched is left out: there is no notation for it.
  Alternatives with(const Expr& expr, const std::string& rest) {
    switch (expr.kind) {
      case Kind::kText:
        return {expr.text.empty() ? rest : chain(quoted(expr.text), rest)};
      case Kind::kSet:
        return {chain(ebnf_class(expr.set), rest)};
      case Kind::kRule:
        return {chain(name(static_cast<size_t>(expr.id)), rest)};
      case Kind::kToken:
        return {chain(fmt::format("Token({})", expr.id), rest)};
      case Kind::kSequence:
        return sequence_with(expr.parts, rest);
      case Kind::kChoice: {
        Alternatives all;
        for (const Expr& part : expr.parts) {
          if (!is_matchable(part, matchable_)) continue;
          Alternatives one = with(part, rest);
          std::move(one.begin(), one.end(), std::back_inserter(all));
        }
        return all;
      }
      case Kind::kRepeat:
        return repeat_with(expr, rest);
    }
    return {};
  }

  Alternatives sequence_with(const std::vector<Expr>& parts, const std::string& rest) {
    Alternatives result = {rest};
    for (size_t i = parts.size(); i-- > 0;) result = with(parts[i], joined(result));
    return result;
  }

  Alternatives repeat_with(const Expr& expr, const std::string& rest) {
    // Longer ones are counted by xgrammar.
    constexpr int64_t kMaxWritten = 64;
    const Expr& part = expr.parts[0];
    if (!is_matchable(part, matchable_)) return {rest};
    const bool is_endless = expr.max < 0;
    if (part.kind == Kind::kSet && is_endless && expr.min <= 1) {
      return {chain(ebnf_class(part.set) + (expr.min == 0 ? "*" : "+"), rest)};
    }
    // What calls rules anyway loses nothing by being called itself.
    const bool may_count = part.kind == Kind::kSet || calls_rules(part);
    if (may_count && (is_endless ? expr.min : expr.max) > kMaxWritten) {
      const std::string counts = is_endless ? fmt::format("{{{},}}", expr.min)
                                            : fmt::format("{{{},{}}}", expr.min, expr.max);
      const std::string once = part.kind == Kind::kSet ? ebnf_class(part.set) : new_name();
      if (part.kind != Kind::kSet) write_rule(once, with(part, ""));
      return {chain(once + counts, rest)};
    }

    Alternatives result = {rest};
    if (is_endless) {
      const std::string again = new_name();
      Alternatives more = with(part, again);
      more.insert(more.begin(), rest);
      write_rule(again, more);
      result = {again};
    }
    for (int64_t i = expr.min; i < expr.max; ++i) {
      result = with(part, joined(result));
      result.insert(result.begin(), rest);
    }
    for (int64_t i = 0; i < expr.min; ++i) result = with(part, joined(result));
    return result;
  }

  static std::string quoted(std::string_view bytes) {
    std::string out = "\"";
    while (!bytes.empty()) {
      const Utf8Unit unit = next_utf8(bytes);
      append_character(out, unit.code_point);
      bytes.remove_prefix(unit.size);
    }
    return out + '"';
  }

  const std::vector<bool>& matchable_;
  int64_t helpers_ = 0;
  std::string out_;
};

}  // namespace

CharSet::CharSet(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.first < b.first; });
  for (const Range& characters : kCharacters) {
    for (const Range& range : ranges) {
      const Range part{std::max(range.first, characters.first),
                       std::min(range.last, characters.last)};
      if (part.first > part.last) continue;
      if (!ranges_.empty() && part.first <= ranges_.back().last + 1) {
        ranges_.back().last = std::max(ranges_.back().last, part.last);
      } else {
        ranges_.push_back(part);
      }
    }
  }
}

CharSet CharSet::all() { return {kCharacters[0], kCharacters[1]}; }

CharSet CharSet::of(std::string_view ascii) {
  std::vector<Range> ranges;
  for (const char c : ascii) {
    ranges.push_back({static_cast<unsigned char>(c), static_cast<unsigned char>(c)});
  }
  return CharSet(std::move(ranges));
}

CharSet CharSet::with(const CharSet& other) const {
  std::vector<Range> ranges = ranges_;
  ranges.insert(ranges.end(), other.ranges_.begin(), other.ranges_.end());
  return CharSet(std::move(ranges));
}

CharSet CharSet::complement() const {
  std::vector<Range> ranges;
  char32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.first > next) ranges.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCharacter) ranges.push_back({next, kLastCharacter});
  return CharSet(std::move(ranges));
}

// De Morgan: what is neither outside this set nor in the other.
CharSet CharSet::without(const CharSet& other) const {
  return complement().with(other).complement();
}

bool CharSet::contains(char32_t c) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [c](const Range& range) { return range.first <= c && c <= range.last; });
}

// xgrammar 0.2.2 turns a range into UTF-8 correctly if all of it has one length, and if, of three
// bytes and more, it stays in one block of 0x1000 or ends with one. (Others let overlong forms
// through, or lead to a byte that nothing may follow.)
std::string ebnf_class(const CharSet& set) {
  std::string out = "[";
  for (CharSet::Range rest : set.ranges()) {
    while (rest.first <= rest.last) {
      char32_t last = rest.last;
      for (const char32_t longer : {0x80u, 0x800u, 0x10000u}) {
        if (rest.first < longer) last = std::min<char32_t>(last, longer - 1);
      }
      const char32_t last_block = last & ~char32_t{0xFFF};
      const bool is_cut = last >= 0x800 && rest.first < last_block && (last & 0xFFF) != 0xFFF;
      if (is_cut) last = last_block - 1;
      append_range(out, {rest.first, last});
      rest.first = last + 1;
    }
  }
  return out + ']';
}

Expr text(std::string_view bytes) { return {.kind = Kind::kText, .text = std::string(bytes)}; }
Expr one_of(CharSet set) { return {.kind = Kind::kSet, .set = std::move(set)}; }
Expr sequence(std::vector<Expr> parts) {
  return {.kind = Kind::kSequence, .parts = std::move(parts)};
}
Expr choice(std::vector<Expr> parts) { return {.kind = Kind::kChoice, .parts = std::move(parts)}; }
Expr repeat(Expr part, int64_t min, int64_t max) {
  Expr result{.kind = Kind::kRepeat, .min = min, .max = max};
  result.parts.push_back(std::move(part));
  return result;
}
Expr optional(Expr part) { return repeat(std::move(part), 0, 1); }
Expr rule(int32_t id) { return {.kind = Kind::kRule, .id = id}; }
Expr token(int32_t id) { return {.kind = Kind::kToken, .id = id}; }

int32_t GrammarRules::declare() {
  bodies_.push_back(choice({}));
  return static_cast<int32_t>(bodies_.size() - 1);
}

void GrammarRules::define(int32_t id, Expr body) {
  bodies_[static_cast<size_t>(id)] = std::move(body);
}

int32_t GrammarRules::add(Expr body) {
  bodies_.push_back(std::move(body));
  return static_cast<int32_t>(bodies_.size() - 1);
}

Result<std::string> GrammarRules::to_ebnf(int64_t max_positions) const {
  int64_t total = 0;
  for (const Expr& body : bodies_) total = std::min(total + positions(body), kManyPositions);
  if (total > max_positions) {
    return fail(ErrorCode::kRequest,
                "the output constraint has {}{} positions with its repetitions written out, more "
                "than {}: simplify it or lower its repetition counts",
                total == kManyPositions ? "over " : "", total, max_positions);
  }

  std::vector<bool> matchable(bodies_.size(), false);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < bodies_.size(); ++i) {
      count_compile_step();
      if (matchable[i] || !is_matchable(bodies_[i], matchable)) continue;
      matchable[i] = true;
      changed = true;
    }
  }
  if (!matchable[0]) {
    return fail(ErrorCode::kRequest,
                "the output constraint cannot be satisfied: no text of finite length matches it");
  }
  EbnfWriter writer(matchable);
  for (size_t i = 0; i < bodies_.size(); ++i) {
    if (matchable[i]) writer.write_rule(i, bodies_[i]);
  }
  return writer.take();
}

}  // namespace tidemill
