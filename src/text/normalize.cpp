#include "text/normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <cassert>
#include <vector>

#include "text/utf8.h"

namespace tidemill {
namespace {

using CodePoints = std::vector<utf8proc_int32_t>;

// The released sequence is NFKC, then NFD; together they are NFKD.
CodePoints decompose(std::string_view text) {
  constexpr auto kOptions =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPAT | UTF8PROC_DECOMPOSE);
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto size = static_cast<utf8proc_ssize_t>(text.size());
  const auto count = utf8proc_decompose(bytes, size, nullptr, 0, kOptions);
  assert(count >= 0 && "text must be valid UTF-8");
  if (count <= 0) return {};
  CodePoints points(static_cast<size_t>(count));
  utf8proc_decompose(bytes, size, points.data(), count, kOptions);
  return points;
}

bool is_blank(utf8proc_int32_t c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// General category M: Mn, Mc and Me. "Strip accents" of the released sequence takes vowel signs of
// Indic scripts (Mc) too.
bool is_mark(utf8proc_int32_t c) {
  const auto category = utf8proc_category(c);
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
         category == UTF8PROC_CATEGORY_ME;
}

// Unicode's White_Space property.
bool is_white_space(utf8proc_int32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

}  // namespace

std::string normalize_for_engram(std::string_view text) {
  CodePoints points = decompose(text);
  std::erase_if(points, is_mark);
  for (auto& c : points) c = is_blank(c) ? ' ' : utf8proc_tolower(c);
  const auto runs =
      std::ranges::unique(points, [](auto a, auto b) { return a == ' ' && b == ' '; });
  points.erase(runs.begin(), runs.end());
  // The released sequence hides a lone space from the strip behind this private character and then
  // turns every such character into a space, also one that the text brought along.
  constexpr utf8proc_int32_t kHiddenSpace = 0xE000;
  if (points.size() == 1 && points[0] == ' ') points[0] = kHiddenSpace;

  const auto first = std::ranges::find_if_not(points, is_white_space);
  const auto last = std::find_if_not(points.rbegin(), std::reverse_iterator(first), is_white_space);
  std::string out;
  std::for_each(first, last.base(), [&](auto c) {
    append_utf8(out, c == kHiddenSpace ? U' ' : static_cast<char32_t>(c));
  });
  return out;
}

}  // namespace tidemill
