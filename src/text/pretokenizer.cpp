#include "text/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <new>
#include <utility>

#include "base/escape.h"
#include "text/pattern_syntax.h"
#include "text/utf8.h"

namespace tidemill {
namespace {

// Far above any split pattern in use (the longest is about 200 bytes); bounds the compiler's work.
constexpr size_t kMaxPatternSize = 4096;

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
using MatchData = std::unique_ptr<pcre2_match_data, FreeMatchData>;

Result<std::shared_ptr<const void>> compile_one(std::string_view source) {
  if (source.size() > kMaxPatternSize) {
    return fail(ErrorCode::kTokenizer, "it has {} bytes; at most {} are supported", source.size(),
                kMaxPatternSize);
  }
  TRY(const std::string pattern, pcre2_pattern(source));
  int error = 0;
  PCRE2_SIZE offset = 0;
  std::unique_ptr<pcre2_code, FreeCode> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NO_AUTO_CAPTURE, &error, &offset, nullptr));
  if (!code) {
    char text[256] = "";
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(text), sizeof text);
    return fail(ErrorCode::kTokenizer, "{}", text);
  }
  uint32_t min_length = 0;
  pcre2_pattern_info(code.get(), PCRE2_INFO_MINLENGTH, &min_length);
  if (min_length == 0) return fail(ErrorCode::kTokenizer, "it can match the empty string");
  // Without JIT support the same matches are found by PCRE2's interpreter.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return std::shared_ptr<const void>(std::move(code));
}

// The first match at or after `start`: [offset, end), or nothing.
bool find(const pcre2_code* code, std::string_view text, size_t start, pcre2_match_data* data) {
  const auto match = [&](uint32_t options) {
    return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), start,
                       options | PCRE2_NO_UTF_CHECK, data, nullptr);
  };
  int result = match(0);
  // The interpreter keeps its backtracking points on the heap and can go deeper.
  if (result == PCRE2_ERROR_JIT_STACKLIMIT) result = match(PCRE2_NO_JIT);
  return result >= 0;
}

void split_by(const pcre2_code* code, std::string_view text, pcre2_match_data* data,
              std::vector<std::string_view>& pieces) {
  const PCRE2_SIZE* match = pcre2_get_ovector_pointer(data);
  size_t done = 0;
  while (done < text.size() && find(code, text, done, data)) {
    if (match[0] > done) pieces.push_back(text.substr(done, match[0] - done));
    pieces.push_back(text.substr(match[0], match[1] - match[0]));
    done = match[1];
  }
  if (done < text.size()) pieces.push_back(text.substr(done));
}

}  // namespace

Result<PreTokenizer> PreTokenizer::compile(std::span<const std::string> patterns) {
  PreTokenizer result;
  for (size_t i = 0; i < patterns.size(); ++i) {
    auto code = compile_one(patterns[i]);
    if (!code) {
      return fail(ErrorCode::kTokenizer, "split pattern {} \"{}\": {}", i,
                  escape_control(std::string_view(patterns[i]).substr(0, kMaxPatternSize)),
                  code.error().message);
    }
    result.patterns_.push_back(*std::move(code));
  }
  return result;
}

std::vector<std::string_view> PreTokenizer::split(std::string_view text) const {
  std::vector<std::string_view> pieces;
  if (!text.empty()) pieces.push_back(text);
  const MatchData data(pcre2_match_data_create(1, nullptr));
  if (!data) throw std::bad_alloc();
  for (const auto& pattern : patterns_) {
    const auto* code = static_cast<const pcre2_code*>(pattern.get());
    std::vector<std::string_view> finer;
    finer.reserve(pieces.size());
    for (const std::string_view piece : pieces) split_by(code, piece, data.get(), finer);
    pieces = std::move(finer);
  }
  return pieces;
}

}  // namespace tidemill
