#include "sample/grammar_ebnf.h"

#include <algorithm>

#include "sample/grammar_deadline.h"
#include "sample/grammar_expr.h"
#include "sample/grammar_regex.h"
#include "text/utf8.h"

namespace tidemill {
namespace {

constexpr std::string_view kFunctions[] = {"Token", "ExcludeToken", "TagDispatch",
                                           "TokenTagDispatch"};

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

class EbnfChecker {
 public:
  EbnfChecker(std::string_view grammar, int max_depth) : grammar_(grammar), max_depth_(max_depth) {}

  Result<std::string> check() {
    int depth = 0;
    while (at_ < grammar_.size()) {
      const size_t begin = at_;
      const char c = grammar_[at_];
      if (c == '[') {
        CHECK_OK(take_class());
        continue;
      }
      if (c == '"') {
        skip_to('"');
      } else if (c == '#') {
        at_ = std::min(grammar_.find('\n', at_), grammar_.size());
      } else if (is_name_character(c)) {
        CHECK_OK(skip_name());
      } else {
        if (c == '\n') ++line_;
        if (c == ')') --depth;
        if (c == '(' && ++depth > max_depth_) {
          return error("groups nested deeper than {}", max_depth_);
        }
        if (grammar_.substr(at_).starts_with("(=")) return error("look-ahead is not supported");
        ++at_;
      }
      out_ += grammar_.substr(begin, at_ - begin);
    }
    return std::move(out_);
  }

 private:
  template <typename... Args>
  tl::unexpected<Error> error(fmt::format_string<Args...> what, Args&&... args) const {
    return fail(ErrorCode::kRequest, "grammar, line {}: {}", line_,
                fmt::format(what, std::forward<Args>(args)...));
  }

  // Past the end of a string or a class, which stand on one line.
  void skip_to(char end) {
    for (++at_; at_ < grammar_.size() && grammar_[at_] != '\n'; ++at_) {
      if (grammar_[at_] == end) {
        ++at_;
        return;
      }
      const bool is_escape = grammar_[at_] == '\\' && at_ + 1 < grammar_.size();
      if (is_escape && grammar_[at_ + 1] != '\n') ++at_;
    }
  }

  Status take_class() {
    const size_t begin = at_;
    skip_to(']');
    const auto set = character_class(grammar_.substr(begin, at_ - begin));
    if (!set) return error("a character class: {}", set.error().message);
    if (set->empty()) return error("a character class without characters");
    const std::string written_out = ebnf_class(*set);
    count_compile_text(written_out.size());
    out_ += written_out;
    return {};
  }

  Status skip_name() {
    const size_t begin = at_;
    while (at_ < grammar_.size() && is_name_character(grammar_[at_])) ++at_;
    const std::string_view name = grammar_.substr(begin, at_ - begin);
    for (const std::string_view function : kFunctions) {
      if (name == function) return error("{} is not supported", name);
    }
    return {};
  }

  std::string_view grammar_;
  int max_depth_;
  size_t at_ = 0;
  int64_t line_ = 1;
  std::string out_;
};

}  // namespace

Result<std::string> checked_ebnf(std::string_view grammar, int max_depth) {
  if (!is_valid_utf8(grammar)) return fail(ErrorCode::kRequest, "grammar: invalid UTF-8");
  if (grammar.find('\0') != std::string_view::npos) {
    return fail(ErrorCode::kRequest, "grammar: U+0000 is not supported");
  }
  count_compile_text(grammar.size());
  return EbnfChecker(grammar, max_depth).check();
}

}  // namespace tidemill
