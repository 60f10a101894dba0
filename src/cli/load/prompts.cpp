#include "cli/load/prompts.h"

#include <array>
#include <cctype>
#include <cmath>

namespace tidemill::cli {
namespace {

// Among the most frequent of English: one token each, with the space before it.
constexpr std::array<std::string_view, 128> kWords = {
    "the",   "of",     "and",   "to",    "in",     "is",    "that",    "for",    "it",      "as",
    "was",   "with",   "be",    "by",    "on",     "not",   "he",      "his",    "but",     "at",
    "are",   "this",   "have",  "from",  "or",     "had",   "an",      "they",   "which",   "one",
    "you",   "were",   "her",   "all",   "she",    "there", "would",   "their",  "we",      "him",
    "been",  "has",    "when",  "who",   "will",   "more",  "no",      "if",     "out",     "so",
    "said",  "what",   "up",    "its",   "about",  "into",  "than",    "them",   "can",     "only",
    "other", "new",    "some",  "could", "time",   "these", "two",     "may",    "then",    "do",
    "first", "any",    "my",    "now",   "such",   "like",  "our",     "over",   "man",     "me",
    "even",  "most",   "made",  "after", "also",   "did",   "many",    "must",   "before",  "back",
    "years", "where",  "much",  "your",  "way",    "well",  "down",    "should", "each",    "just",
    "those", "people", "how",   "too",   "little", "state", "good",    "very",   "make",    "world",
    "still", "own",    "see",   "men",   "work",   "long",  "get",     "here",   "between", "both",
    "life",  "being",  "under", "never", "day",    "same",  "another", "know"};

// Independent streams of one seed (the finaliser of splitmix64).
uint64_t mix(uint64_t seed, uint64_t stream) {
  uint64_t x = seed + 0x9E3779B97F4A7C15u * (stream + 1);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}
constexpr uint64_t kLengthStreams = uint64_t{1} << 60;
constexpr uint64_t kPrefixStreams = uint64_t{2} << 60;

void append_words(std::string& text, int64_t count, BenchRandom random) {
  for (int64_t i = 0; i < count; ++i) {
    if (!text.empty()) text += ' ';
    text += kWords[static_cast<size_t>(random.between(0, kWords.size() - 1))];
  }
}

}  // namespace

Result<LengthDistribution> parse_lengths(std::string_view flag, std::string_view text) {
  std::string form(text);
  if (!text.empty() && std::isdigit(static_cast<unsigned char>(text.front())) != 0) {
    const size_t colon = text.find(':');
    form = colon == std::string_view::npos
               ? fmt::format("fixed:{}", text)
               : fmt::format("uniform:{}-{}", text.substr(0, colon), text.substr(colon + 1));
  }
  auto lengths = LengthDistribution::parse(flag, form);
  if (lengths) return lengths;
  return fail(ErrorCode::kInvalidArgument,
              "{} cannot be \"{}\"; LOW:HIGH or N, from 1 to {}, or a form of tidemill bench such "
              "as lognormal:MEDIAN,SIGMA",
              flag, text, kMaxBenchTokens);
}

DrawnLengths draw_lengths(const PromptShape& shape, uint64_t index) {
  BenchRandom random(mix(shape.seed, kLengthStreams + index));
  DrawnLengths drawn;
  drawn.prompt_tokens = shape.prompt.draw(random);
  drawn.output_tokens = shape.output.draw(random);
  return drawn;
}

std::string make_prompt(const PromptShape& shape, uint64_t index, int64_t tokens) {
  BenchRandom random(mix(shape.seed, index));
  const auto prefix = static_cast<uint64_t>(random.between(0, shape.prefixes - 1));
  const auto share =
      static_cast<int64_t>(std::llround(shape.prefix_share * static_cast<double>(tokens)));
  std::string text;
  append_words(text, shape.prefix_tokens + share,
               BenchRandom(mix(shape.seed, kPrefixStreams + prefix)));
  append_words(text, tokens - share, random);
  return text;
}

}  // namespace tidemill::cli
