// What a benchmark asks for: synthetic requests, or those of a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tidemill::cli {

inline constexpr int64_t kMaxBenchRequests = 1'000'000;
inline constexpr int64_t kMaxBenchTokens = int64_t{1} << 21;  // of one prompt or answer

// Random numbers that are the same on every platform, unlike the distributions of <random>.
class BenchRandom {
 public:
  explicit BenchRandom(uint64_t seed) : engine_(seed) {}
  double uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }  // [0, 1)
  int64_t between(int64_t first, int64_t last);                                // both included
  double normal();

 private:
  std::mt19937_64 engine_;
};

// Numbers of tokens, each 1 to kMaxBenchTokens:
//   fixed:N                 always N
//   uniform:A-B             A to B, both included
//   lognormal:MEDIAN,SIGMA  e to the power of a normal variable: long tails, as real traffic has
//   table:N=WEIGHT,...      N with a probability in proportion to its weight
class LengthDistribution {
 public:
  // Error kInvalidArgument names `flag`, the text and what is allowed.
  static Result<LengthDistribution> parse(std::string_view flag, std::string_view text);

  int64_t draw(BenchRandom& random) const;
  // No draw is longer.
  int64_t longest() const;
  const std::string& text() const { return text_; }

 private:
  struct Row {
    int64_t length = 0;
    double below = 1.0;  // the share of draws up to this row
  };
  enum class Kind { kUniform, kLognormal, kTable };

  Kind kind_ = Kind::kUniform;
  int64_t first_ = 1, last_ = 1;  // kUniform; fixed:N is one of a single value
  double median_ = 1, sigma_ = 0;
  std::vector<Row> table_;
  std::string text_;
};

struct WorkItem {
  std::vector<int32_t> prompt;  // at least one token
  int64_t output_tokens = 1;    // at most, and exactly so if `exact`
  bool exact = true;            // the model's end of sequence does not stop
  int64_t line = 0;             // of the file; 0: synthetic
};

// Token ids that random prompts are made of: 0 to below `vocabulary`, without `excluded`.
struct TokenSource {
  int64_t vocabulary = 0;
  std::vector<int32_t> excluded;  // e.g. the end of sequence

  std::vector<int32_t> draw(int64_t count, BenchRandom& random) const;
};

struct SyntheticWorkload {
  int64_t requests = 1;
  LengthDistribution prompt;
  LengthDistribution output;
  // The first part of every prompt, as a share of its length, is the start of one common text:
  // what system prompts and tool lists are in real traffic. The rest differs.
  double shared_prefix = 0;
  uint64_t seed = 0;
};

std::vector<WorkItem> synthetic_workload(const SyntheticWorkload& spec, const TokenSource& tokens);

using EncodeText = std::function<std::vector<int32_t>(std::string_view)>;

// JSON lines, each a request with one of
//   "prompt_tokens": [ids]   "prompt_length": N (random tokens)   "prompt": "text"
// and, unless `output` is to decide, "output_length": N. Blank lines are skipped; "-" is standard
// input. Answers have exactly the length that a line names; otherwise the model may end earlier
// where the prompt is not random. Errors: those of read_input, and kRequest with file and line.
Result<std::vector<WorkItem>> read_workload(const std::filesystem::path& path,
                                            const LengthDistribution& output, uint64_t seed,
                                            const TokenSource& tokens, const EncodeText& encode);

// Open-loop arrivals: `count` times in seconds, ascending from 0, of a Poisson process.
std::vector<double> poisson_arrivals(int64_t count, double per_second, uint64_t seed);

// Does every request fit into `context` tokens? Error kContextLength names the first that does not.
Status check_lengths(std::span<const WorkItem> items, int64_t context);

}  // namespace tidemill::cli
