#include "sample/grammar_regex.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/utf8.h"

namespace tidemill {
namespace {

// Beyond it a repetition is refused here, long before its product with others is.
constexpr int64_t kMaxRepetition = 100000;

const CharSet& digits() {
  static const CharSet set{{'0', '9'}};
  return set;
}
const CharSet& word_characters() {
  static const CharSet set{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  return set;
}
const CharSet& spaces() {
  static const CharSet set{{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680},
                           {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                           {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
  return set;
}
const CharSet& line_ends() {
  static const CharSet set{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
  return set;
}

// \d and its like; nullopt when `c` names no class.
std::optional<CharSet> named_class(char32_t c) {
  switch (c) {
    case 'd':
      return digits();
    case 'D':
      return digits().complement();
    case 'w':
      return word_characters();
    case 'W':
      return word_characters().complement();
    case 's':
      return spaces();
    case 'S':
      return spaces().complement();
    default:
      return std::nullopt;
  }
}

class RegexParser {
 public:
  RegexParser(std::u32string regex, RegexMatch match, int max_depth)
      : regex_(std::move(regex)), match_(match), max_depth_(max_depth) {}

  Result<CharSet> parse_class() {
    TRY(CharSet set, character_class());
    if (!at_end()) return error("a class ends at its ']'");
    return set;
  }

  Result<Expr> parse() {
    TRY(Expr expr, alternatives(0));
    if (!at_end()) return error("')' without '('");
    return expr;
  }

 private:
  bool at_end() const { return at_ == regex_.size(); }
  bool next_is(char32_t c) const { return !at_end() && regex_[at_] == c; }
  bool take(char32_t c) {
    if (!next_is(c)) return false;
    ++at_;
    return true;
  }
  bool take(std::u32string_view characters) {
    if (regex_.compare(at_, characters.size(), characters) != 0) return false;
    at_ += characters.size();
    return true;
  }
  template <typename... Args>
  tl::unexpected<Error> error(fmt::format_string<Args...> what, Args&&... args) const {
    return fail(ErrorCode::kRequest, "regex, position {}: {}", at_ + 1,
                fmt::format(what, std::forward<Args>(args)...));
  }

  Result<Expr> alternatives(int depth) {
    std::vector<Expr> parts;
    do {
      TRY(Expr part, alternative(depth));
      parts.push_back(std::move(part));
    } while (take(U'|'));
    return parts.size() == 1 ? std::move(parts[0]) : choice(std::move(parts));
  }

  Result<Expr> alternative(int depth) {
    const bool may_float = match_ == RegexMatch::kSearch && depth == 0;
    bool holds_begin = false;
    bool holds_end = false;
    std::vector<Expr> parts;
    while (!at_end() && !next_is('|') && !next_is(')')) {
      if (next_is('^')) {
        if (depth > 0 || !parts.empty()) return error("^ is supported at the beginning only");
        holds_begin = true;
        ++at_;
        continue;
      }
      if (next_is('$')) {
        const bool is_last = at_ + 1 == regex_.size() || regex_[at_ + 1] == '|';
        if (depth > 0 || !is_last) return error("$ is supported at the end only");
        holds_end = true;
        ++at_;
        continue;
      }
      TRY(Expr part, atom(depth));
      TRY(part, quantified(std::move(part)));
      parts.push_back(std::move(part));
    }
    if (may_float && !holds_begin) {
      parts.insert(parts.begin(), repeat(one_of(CharSet::all()), 0, -1));
    }
    if (may_float && !holds_end) parts.push_back(repeat(one_of(CharSet::all()), 0, -1));
    return sequence(std::move(parts));
  }

  Result<Expr> atom(int depth) {
    if (next_is('(')) return group(depth);
    if (next_is('[')) {
      TRY(CharSet set, character_class());
      return one_of(std::move(set));
    }
    if (next_is('*') || next_is('+') || next_is('?')) return error("nothing to repeat");
    if (next_is('{') || next_is('}') || next_is(']')) {
      return error("'{}' stands for itself as '\\{}' only", static_cast<char>(regex_[at_]),
                   static_cast<char>(regex_[at_]));
    }
    if (take(U'.')) return one_of(line_ends().complement());
    if (next_is('\\')) {
      TRY(Item item, escape(/*in_class=*/false));
      return one_of(std::move(item.set));
    }
    const char32_t c = regex_[at_++];
    return one_of({{c, c}});
  }

  Result<Expr> group(int depth) {
    if (depth >= max_depth_) return error("groups are nested deeper than {}", max_depth_);
    const size_t begin = at_++;
    if (next_is('?')) {
      if (take(U"?=") || take(U"?!")) return error("look-ahead is not supported");
      if (take(U"?<=") || take(U"?<!")) return error("look-behind is not supported");
      if (take(U"?<") || take(U"?P<")) {
        while (!at_end() && word_characters().contains(regex_[at_])) ++at_;
        if (!take(U'>')) return error("a group's name ends in '>'");
      } else if (!take(U"?:")) {
        return error("flags of groups are not supported");
      }
    }
    TRY(Expr inside, alternatives(depth + 1));
    if (!take(U')')) {
      at_ = begin;
      return error("'(' without ')'");
    }
    return inside;
  }

  Result<Expr> quantified(Expr part) {
    int64_t min = 0;
    int64_t max = -1;
    if (take(U'*')) {
    } else if (take(U'+')) {
      min = 1;
    } else if (take(U'?')) {
      max = 1;
    } else if (take(U'{')) {
      TRY(min, count());
      max = min;
      if (take(U',')) {
        max = -1;
        if (!next_is('}')) {
          TRY(max, count());
          if (max < min) return error("the repetition {{{},{}}} is out of order", min, max);
        }
      }
      if (!take(U'}')) return error("a repetition is {{n}}, {{n,}} or {{n,m}}");
    } else {
      return part;
    }
    take(U'?');  // lazy or greedy, the language is the same
    if (next_is('*') || next_is('+') || next_is('?') || next_is('{')) {
      return error("a quantifier after a quantifier");
    }
    return repeat(std::move(part), min, max);
  }

  Result<int64_t> count() {
    if (at_end() || !digits().contains(regex_[at_])) return error("a repetition count is a number");
    int64_t value = 0;
    while (!at_end() && digits().contains(regex_[at_])) {
      value = value * 10 + (regex_[at_] - U'0');
      if (value > kMaxRepetition) return error("a repetition count is above {}", kMaxRepetition);
      ++at_;
    }
    return value;
  }

  Result<CharSet> character_class() {
    const size_t begin = at_++;
    const bool is_negated = take(U'^');
    std::vector<CharSet::Range> ranges;
    while (!next_is(']')) {
      if (at_end()) {
        at_ = begin;
        return error("'[' without ']'");
      }
      TRY(const Item first, class_item());
      const bool is_range = next_is('-') && at_ + 1 < regex_.size() && regex_[at_ + 1] != ']';
      if (!is_range) {
        ranges.insert(ranges.end(), first.set.ranges().begin(), first.set.ranges().end());
        continue;
      }
      ++at_;
      TRY(const Item last, class_item());
      if (!first.character || !last.character || *first.character > *last.character) {
        return error("a range that is out of order");
      }
      ranges.push_back({*first.character, *last.character});
    }
    ++at_;
    CharSet set(std::move(ranges));
    return is_negated ? set.complement() : set;
  }

  // Of a class: one character (U+0000 too, which is in no set), or a class in the class.
  struct Item {
    CharSet set;
    std::optional<char32_t> character = std::nullopt;
  };
  static Item one(char32_t c) { return {CharSet{{c, c}}, c}; }

  Result<Item> class_item() {
    if (at_end()) return error("'[' without ']'");
    if (next_is('\\')) return escape(/*in_class=*/true);
    return one(regex_[at_++]);
  }

  Result<Item> escape(bool in_class) {
    if (at_ + 1 == regex_.size()) return error("\\ at the end");
    const char32_t c = regex_[at_ + 1];
    if (auto set = named_class(c)) {
      at_ += 2;
      return Item{*std::move(set)};
    }
    switch (c) {
      case 'n':
        at_ += 2;
        return one('\n');
      case 'r':
        at_ += 2;
        return one('\r');
      case 't':
        at_ += 2;
        return one('\t');
      case 'f':
        at_ += 2;
        return one('\f');
      case 'v':
        at_ += 2;
        return one('\v');
      case 'x':
        return code_point(2);
      case 'u':
        return code_point(4);
      case 'U':
        if (in_class) return code_point(8);
        break;
      case 'b':
        if (!in_class) return error("\\b is not supported");
        at_ += 2;
        return one('\b');
      default:
        break;
    }
    if (c >= '1' && c <= '9') return error("back-references are not supported");
    if (word_characters().contains(c)) return error("\\{} is not supported", static_cast<char>(c));
    at_ += 2;
    return one(c);
  }

  // \xHH, \uHHHH, \UHHHHHHHH, \u{H...}
  Result<Item> code_point(int digit_count) {
    const size_t begin = at_;
    at_ += 2;
    const bool has_braces = digit_count == 4 && take(U'{');
    char32_t value = 0;
    int taken = 0;
    while (taken < (has_braces ? 6 : digit_count) && !at_end()) {
      const char32_t c = regex_[at_];
      char32_t digit = 0;
      if (c >= '0' && c <= '9') {
        digit = c - U'0';
      } else if (c >= 'a' && c <= 'f') {
        digit = c - U'a' + 10;
      } else if (c >= 'A' && c <= 'F') {
        digit = c - U'A' + 10;
      } else {
        break;
      }
      value = value * 16 + digit;
      ++taken;
      ++at_;
    }
    const bool is_complete = has_braces ? taken > 0 && take(U'}') : taken == digit_count;
    Item item = one(value);
    if (!is_complete || (item.set.empty() && value != 0)) {
      at_ = begin;
      return error("an escape that names no character");
    }
    return item;
  }

  std::u32string regex_;
  RegexMatch match_;
  int max_depth_;
  size_t at_ = 0;
};

Result<std::u32string> code_points_of(std::string_view regex) {
  std::u32string code_points;
  while (!regex.empty()) {
    const Utf8Unit unit = next_utf8(regex);
    if (unit.kind != Utf8Unit::Kind::kCharacter || unit.code_point == 0) {
      return fail(ErrorCode::kRequest, "regex, position {}: {}", code_points.size() + 1,
                  unit.kind == Utf8Unit::Kind::kCharacter ? "U+0000" : "invalid UTF-8");
    }
    code_points += unit.code_point;
    regex.remove_prefix(unit.size);
  }
  return code_points;
}

}  // namespace

Result<Expr> regex_to_expr(std::string_view regex, RegexMatch match, int max_depth) {
  TRY(std::u32string code_points, code_points_of(regex));
  return RegexParser(std::move(code_points), match, max_depth).parse();
}

Result<CharSet> character_class(std::string_view regex) {
  TRY(std::u32string code_points, code_points_of(regex));
  return RegexParser(std::move(code_points), RegexMatch::kWhole, 0).parse_class();
}

}  // namespace tidemill
