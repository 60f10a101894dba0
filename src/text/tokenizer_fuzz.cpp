// The first line of the input is tried as a tokenizer.json and as a split pattern for the text
// behind it; a small fixed tokenizer reads the whole input as text.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/byte_alphabet.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace tidemill {
namespace {

// All bytes, one merge, one added token, the split rules of the released models.
std::string small_tokenizer() {
  std::string vocabulary = R"("ab":256)";
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string raw;
    append_utf8(raw, byte_to_character(static_cast<uint8_t>(byte)));
    if (raw == "\"" || raw == "\\") raw = "\\" + raw;
    vocabulary += ",\"" + raw + "\":" + std::to_string(byte);
  }
  return R"({"added_tokens":[{"id":257,"content":"<s>","special":true}],)"
         R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[)"
         R"({"type":"Split","pattern":{"Regex":"\\p{N}{1,3}"},"behavior":"Isolated"},)"
         R"({"type":"ByteLevel","use_regex":true}]},"decoder":{"type":"ByteLevel"},)"
         R"("model":{"type":"BPE","merges":["a b"],"vocab":{)" +
         vocabulary + "}}}";
}

void require(bool condition) {
  if (!condition) std::abort();
}

std::string stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  Detokenizer detokenizer(tokenizer);
  std::string text;
  for (const int32_t id : ids) text += detokenizer.push(id);
  return text + detokenizer.finish();
}

void exercise(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<int32_t> plain = tokenizer.encode(text);
  require(tokenizer.decode(plain) == replace_invalid_utf8(text));
  // Full mode need not come back: the spelling of an added token may be in the byte alphabet.
  const std::vector<int32_t> full = tokenizer.encode_with_added_tokens(text);
  // The bytes as ids, so that characters are cut anywhere.
  const std::vector<int32_t> bytes(reinterpret_cast<const uint8_t*>(text.data()),
                                   reinterpret_cast<const uint8_t*>(text.data() + text.size()));
  for (const auto& ids : {plain, full, bytes}) {
    require(stream(tokenizer, ids) == tokenizer.decode(ids));
  }
}

void exercise_pattern(const std::string& pattern, std::string_view text) {
  const auto pre_tokenizer = PreTokenizer::compile({&pattern, 1});
  if (!pre_tokenizer) return;
  const std::string valid = replace_invalid_utf8(text);
  std::string joined;
  for (const std::string_view piece : pre_tokenizer->split(valid)) {
    require(!piece.empty());
    joined += piece;
  }
  require(joined == valid);
}

}  // namespace
}  // namespace tidemill

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tidemill;
  static const auto* const fixed = new Tokenizer(Tokenizer::parse(small_tokenizer()).value());
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view line = input.substr(0, input.find('\n'));
  const std::string_view rest = input.substr(std::min(line.size() + 1, size)).substr(0, 1000);
  if (const auto parsed = Tokenizer::parse(line)) exercise(*parsed, rest);
  exercise_pattern(std::string(line), rest);
  exercise(*fixed, input);
  return 0;
}
