// Byte 0 chooses the kind of constraint, the rest is its text. What compiles is walked at random.
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "sample/grammar.h"
#include "text/byte_alphabet.h"
#include "text/output_parser.h"
#include "text/special_tokens.h"
#include "text/utf8.h"

namespace tidemill {
namespace {

constexpr int32_t kThinkEnd = 256;
constexpr int32_t kMarker = 257;
constexpr int32_t kStop = 258;

// All bytes and the tokens that grammars know.
std::string small_tokenizer() {
  std::string vocabulary;
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string raw;
    append_utf8(raw, byte_to_character(static_cast<uint8_t>(byte)));
    if (raw == "\"" || raw == "\\") raw = "\\" + raw;
    vocabulary += fmt::format("{}\"{}\":{}", byte == 0 ? "" : ",", raw, byte);
  }
  return fmt::format(
      R"({{"added_tokens":[{{"id":{},"content":"{}","special":true}},)"
      R"({{"id":{},"content":"{}","special":true}},{{"id":{},"content":"{}","special":true}}],)"
      R"("pre_tokenizer":{{"type":"Sequence","pretokenizers":[)"
      R"({{"type":"Split","pattern":{{"Regex":"\\p{{N}}{{1,3}}"}},"behavior":"Isolated"}},)"
      R"({{"type":"ByteLevel","use_regex":true}}]}},"decoder":{{"type":"ByteLevel"}},)"
      R"("model":{{"type":"BPE","merges":[],"vocab":{{{}}}}}}})",
      kThinkEnd, special::kThinkEnd, kMarker, special::kDsml, kStop, special::kEos, vocabulary);
}

void require(bool condition) {
  if (!condition) std::abort();
}

const Tokenizer& tokenizer() {
  static const Tokenizer value = Tokenizer::parse(small_tokenizer()).value();
  return value;
}

GrammarCompiler& compiler() {
  static GrammarCompiler value = [] {
    GrammarLimits limits;
    limits.source_bytes = 4096;
    limits.max_depth = 32;
    limits.max_positions = 2000;
    limits.compile_time = std::chrono::milliseconds(500);
    return GrammarCompiler(GrammarVocabulary::make(tokenizer(), kStop + 1, {kStop}).value(), limits,
                           1 << 20);
  }();
  return value;
}

// Follows random tokens that may follow; some of them are taken back first.
void walk(GrammarMatcher matcher, const GrammarSpec& spec, uint32_t seed) {
  std::mt19937 random(seed);
  const auto words = static_cast<size_t>(compiler().vocabulary().mask_words());
  std::vector<uint32_t> mask(words);
  std::vector<uint32_t> again(words);
  std::string text;
  for (int step = 0; step < 100 && !matcher.is_terminated(); ++step) {
    if (!matcher.fill_mask(mask)) return;
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token <= kStop; ++token) {
      if ((mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1u) != 0) {
        allowed.push_back(token);
      }
    }
    require(!allowed.empty());
    const int32_t token = allowed[random() % allowed.size()];
    require(matcher.accept(token));
    if (random() % 4 == 0) {
      matcher.rollback(1);
      if (!matcher.fill_mask(again)) return;
      require(again == mask);
      require(matcher.accept(token));
    }
    if (token != kStop) text += tokenizer().bytes(token);
  }
  if (!matcher.is_terminated()) return;
  const bool is_json =
      spec.kind == GrammarSpec::Kind::kJsonSchema || spec.kind == GrammarSpec::Kind::kJsonObject;
  if (is_json) require(parse_json(text).has_value());
  if (spec.kind != GrammarSpec::Kind::kEbnf && spec.choice != ToolChoice::kAuto) {
    require(is_valid_utf8(text));
  }
}

}  // namespace
}  // namespace tidemill

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tidemill;
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  GrammarSpec spec;
  spec.kind = static_cast<GrammarSpec::Kind>(data[0] % 5);
  spec.choice = ToolChoice::kRequired;
  if (spec.kind == GrammarSpec::Kind::kToolCalls) {
    const auto parameters = parse_json(text);
    if (!parameters) return 0;
    spec.tools = {{"f", "", *parameters}};
    spec.strict = (data[0] & 0x80) == 0;
  } else {
    spec.text = text;
  }
  const auto compiled = compiler().compile(spec);
  if (!compiled) return 0;
  auto matcher = GrammarMatcher::make(*compiled, Prompt::Start::kContent);
  require(matcher.has_value());
  walk(*std::move(matcher), spec, static_cast<uint32_t>(size));
  return 0;
}
