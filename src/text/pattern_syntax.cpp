#include "text/pattern_syntax.h"

#include <cctype>

#include "text/unicode_additions.h"

namespace tidemill {
namespace {

// Unicode's White_Space property as members of a character class.
constexpr std::string_view kWhiteSpace =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";

class PatternTranslator {
 public:
  explicit PatternTranslator(std::string_view pattern) : rest_(pattern) {}

  Result<std::string> translate() {
    while (!rest_.empty()) CHECK_OK(step());
    return std::move(out_);
  }

 private:
  Status step() {
    if (rest_.starts_with('\\')) return escape();
    if (in_class_) return class_member();
    if (rest_.starts_with('[')) {
      copy(rest_.starts_with("[^") ? 2 : 1);
      in_class_ = true;
      // A bracket in first place would be an ordinary character.
      if (rest_.starts_with(']')) return refuse("an empty character class");
      return {};
    }
    if (rest_.starts_with('(')) return group();
    // These depend on what counts as a line, on which the two libraries differ.
    for (const char c : {'.', '^', '$'}) {
      if (rest_.starts_with(c)) return refuse(std::string_view(&c, 1));
    }
    copy(1);
    return {};
  }

  Status class_member() {
    // Set operations and nested classes exist in one library only.
    if (rest_.starts_with('[')) return refuse("\"[\" inside a character class");
    if (rest_.starts_with("&&")) return refuse("\"&&\" inside a character class");
    in_class_ = !rest_.starts_with(']');
    copy(1);
    return {};
  }

  Status group() {
    for (const std::string_view opening : {"(?:", "(?=", "(?!"}) {
      if (rest_.starts_with(opening)) {
        copy(opening.size());
        return {};
      }
    }
    if (rest_.starts_with("(?") || rest_.starts_with("(*")) return refuse(rest_.substr(0, 3));
    copy(1);
    return {};
  }

  Status escape() {
    if (rest_.size() < 2) return refuse("\"\\\" at the end");
    const char c = rest_[1];
    if (c == 'p') return property();
    if (c == 's') {
      member(kWhiteSpace);
    } else if (c == 'S' && !in_class_) {
      out_ += "[^";
      out_ += kWhiteSpace;
      out_ += ']';
    } else if (c == 'r' || c == 'n' || c == 't' || std::ispunct(static_cast<unsigned char>(c))) {
      copy(2);
      return {};
    } else {
      return refuse(rest_.substr(0, 2));
    }
    rest_.remove_prefix(2);
    return {};
  }

  // \p{L} and its like: PCRE2's own table and what is newer than it.
  Status property() {
    constexpr size_t kSize = 5;
    const bool braces = rest_.size() >= kSize && rest_[2] == '{' && rest_[4] == '}';
    const auto additions = added_since_unicode14(braces ? rest_[3] : '\0');
    if (additions.empty()) return refuse(rest_.substr(0, kSize));
    std::string members(rest_.substr(0, kSize));
    for (const auto [first, last] : additions) {
      members += fmt::format("\\x{{{:x}}}-\\x{{{:x}}}", static_cast<uint32_t>(first),
                             static_cast<uint32_t>(last));
    }
    member(members);
    rest_.remove_prefix(kSize);
    return {};
  }

  void member(std::string_view members) {
    if (!in_class_) out_ += '[';
    out_ += members;
    if (!in_class_) out_ += ']';
  }

  void copy(size_t size) {
    out_ += rest_.substr(0, size);
    rest_.remove_prefix(size);
  }

  tl::unexpected<Error> refuse(std::string_view construct) const {
    return fail(ErrorCode::kTokenizer, "{} is not supported in a split pattern", construct);
  }

  std::string_view rest_;
  std::string out_;
  bool in_class_ = false;
};

}  // namespace

Result<std::string> pcre2_pattern(std::string_view pattern) {
  return PatternTranslator(pattern).translate();
}

}  // namespace tidemill
