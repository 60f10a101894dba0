#include "cli/bench/options.h"

#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <string_view>

#include "cli/bench/workload.h"
#include "sched/draft_scheduler.h"

namespace tidemill::cli {
namespace {

constexpr int64_t kMaxSequences = 1 << 16;
constexpr int32_t kLongestDraft = 64;  // of any model; the engine knows this one's
constexpr int64_t kMaxListed = 256;    // values of one list

constexpr unsigned kWorkload = static_cast<unsigned>(BenchMode::kWorkload);
constexpr unsigned kPrefill = static_cast<unsigned>(BenchMode::kPrefill);
constexpr unsigned kDecode = static_cast<unsigned>(BenchMode::kDecode);
constexpr unsigned kHost = static_cast<unsigned>(BenchMode::kHost);
constexpr unsigned kCurve = static_cast<unsigned>(BenchMode::kCurve);
constexpr unsigned kConvert = static_cast<unsigned>(BenchMode::kConvert);
constexpr unsigned kEngine = kWorkload | kPrefill | kDecode | kHost;

// Where a flag means something. A flag that would be ignored is an error instead.
struct FlagUse {
  const char* flag;
  unsigned modes;
};
constexpr std::array kUses = {
    FlagUse{"--model", kEngine},
    FlagUse{"--backend", kEngine},
    FlagUse{"--threads", kEngine},
    FlagUse{"--context", kEngine},
    FlagUse{"--replay", kEngine},
    FlagUse{"--memory", kEngine},
    FlagUse{"--alias-layers", kEngine},
    FlagUse{"--fill-context", kEngine},
    FlagUse{"--sequences", kEngine},
    FlagUse{"--pool-blocks", kEngine},
    FlagUse{"--chunk", kWorkload | kDecode | kHost},
    FlagUse{"--step-ms", kEngine},
    FlagUse{"--verification", kEngine},
    FlagUse{"--no-prefix-cache", kEngine},
    FlagUse{"--draft", kWorkload | kDecode | kHost | kCurve | kConvert},
    FlagUse{"--workload", kWorkload},
    FlagUse{"--requests", kWorkload},
    FlagUse{"--prompt", kWorkload},
    FlagUse{"--output", kWorkload},
    FlagUse{"--shared-prefix", kWorkload},
    FlagUse{"--temperature", kWorkload | kDecode | kHost},
    FlagUse{"--seed", kEngine},
    FlagUse{"--concurrency", kWorkload | kCurve},
    FlagUse{"--rate", kWorkload},
    FlagUse{"--prompts", kPrefill},
    FlagUse{"--chunks", kPrefill},
    FlagUse{"--contexts", kDecode},
    FlagUse{"--batches", kPrefill | kDecode},
    FlagUse{"--running", kHost},
    FlagUse{"--decode-tokens", kDecode | kHost},
    FlagUse{"--repeats", kEngine | kCurve},
    FlagUse{"--warmups", kEngine},
    FlagUse{"--acceptance", kConvert},
    FlagUse{"--check", kCurve},
    FlagUse{"--records", kEngine | kCurve},
    FlagUse{"--gaps", kEngine},
    FlagUse{"--pareto", kWorkload | kDecode | kCurve},
    FlagUse{"--floor", kPrefill | kDecode},
};

std::string name_of(BenchMode mode) {
  switch (mode) {
    case BenchMode::kWorkload:
      return "a workload";
    case BenchMode::kPrefill:
      return "--sweep prefill";
    case BenchMode::kDecode:
      return "--sweep decode";
    case BenchMode::kHost:
      return "--host";
    case BenchMode::kCurve:
      return "--curve";
    case BenchMode::kConvert:
      return "--convert";
  }
  return "?";
}

// CLI::Range takes NaN for a number within any range.
CLI::Validator finite_range(double least, double most) {
  return CLI::Validator(
      [least, most](std::string& text) -> std::string {
        double value = 0;
        const bool number = CLI::detail::lexical_cast(text, value);
        if (number && value >= least && value <= most) return {};
        return fmt::format("Value {} not in range {:g} to {:g}", text, least, most);
      },
      fmt::format("FLOAT in [{:g} - {:g}]", least, most));
}

template <typename T>
void add_list(CLI::App& command, const char* flag, std::vector<T>& values, const char* text,
              const CLI::Validator& check) {
  command.add_option(flag, values, text)
      ->delimiter(',')
      ->expected(1, kMaxListed)
      ->check(check)
      ->capture_default_str();
}

}  // namespace

BenchMode BenchOptions::mode() const {
  if (!convert.empty()) return BenchMode::kConvert;
  if (!curve.empty()) return BenchMode::kCurve;
  if (host) return BenchMode::kHost;
  if (sweep == "prefill") return BenchMode::kPrefill;
  if (sweep == "decode") return BenchMode::kDecode;
  return BenchMode::kWorkload;
}

Options BenchOptions::engine_options() const {
  Options options;
  options.alias_bytes = alias_bytes();
  options.fill_context = fill_context;
  options.sequences = sequences;
  options.pool_blocks = pool_blocks;
  options.step_ms = step_ms;
  options.verification = verification;
  options.prefix_cache = !no_prefix_cache && fill_context == 0;
  return options;
}

void BenchOptions::add_to(CLI::App& command) {
  const CLI::Range tokens(int64_t{1}, kMaxBenchTokens);
  const CLI::Range sequence_count(int64_t{1}, kMaxSequences);

  engine.add_engine_to(command);
  command
      .add_option("--alias-layers", alias_gib,
                  "The model has a config.json and a tokenizer only: random weights in so many GiB")
      ->check(finite_range(1e-3, 1e6));
  command
      .add_option("--fill-context", fill_context,
                  "So many tokens of each prompt count as computed: random state lies there")
      ->check(tokens);
  command.add_option("--sequences", sequences, "Requests on the device (default: what is asked)")
      ->check(sequence_count);
  command.add_option("--pool-blocks", pool_blocks, "Of 128 tokens (default: enough for all)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32));
  command.add_option("--step-ms", step_ms, "The time a step should take (default: no limit)")
      ->check(finite_range(0, 1e6));
  command.add_option("--verification", verification, "keyed or rejection")
      ->check(CLI::IsMember({"keyed", "rejection"}))
      ->capture_default_str();
  command.add_flag("--no-prefix-cache", no_prefix_cache, "Nothing is reused between requests");
  command
      .add_option("--draft", drafts,
                  "off, fixed:N, dynamic, dynamic-lagged, dynamic-early-stop; several: a,b,c")
      ->delimiter(',')
      ->expected(1, kMaxListed);

  command.add_option("--workload", workload, "synthetic, or a file of JSON lines; - is stdin")
      ->capture_default_str();
  command.add_option("--requests", requests, "Of the synthetic workload")
      ->check(CLI::Range(int64_t{1}, kMaxBenchRequests))
      ->capture_default_str();
  command
      .add_option("--prompt", prompt,
                  "Lengths: fixed:N, uniform:A-B, lognormal:MEDIAN,SIGMA or table:N=WEIGHT,...")
      ->capture_default_str();
  command.add_option("--output", output, "Lengths of answers, likewise")->capture_default_str();
  command
      .add_option("--shared-prefix", shared_prefix, "Share of every prompt that is common to all")
      ->check(finite_range(0, 1))
      ->capture_default_str();
  command.add_option("--temperature", temperature, "0: the most likely token")
      ->check(finite_range(0, 100))
      ->capture_default_str();
  command.add_option("--seed", seed, "Of lengths, tokens and arrivals")->capture_default_str();
  add_list(command, "--concurrency", concurrency, "Requests kept in flight: 1,4,8", sequence_count);
  add_list(command, "--rate", rates, "Instead: random arrivals, so many per second",
           finite_range(1e-3, 1e6));

  command
      .add_option("--sweep", sweep,
                  "prefill: chunks, prompts, batches; decode: drafts, contexts, batches")
      ->check(CLI::IsMember({"prefill", "decode"}));
  add_list(command, "--prompts", prompts, "Prompt lengths of --sweep prefill", tokens);
  add_list(command, "--chunks", chunks, "Step sizes of --sweep prefill",
           CLI::Range(int64_t{1}, int64_t{65536}));
  add_list(command, "--contexts", contexts, "Prompt lengths of --sweep decode", tokens);
  add_list(command, "--batches", batches, "Requests at once in a sweep", sequence_count);
  command.add_flag("--host", host, "The host's work per step, with many short requests");
  add_list(command, "--running", running, "Requests at once of --host", sequence_count);
  command.add_option("--decode-tokens", decode_tokens, "Measured per request in decode")
      ->check(tokens)
      ->capture_default_str();
  command.add_option("--repeats", repeats, "Runs per cell (default: 1 of a workload, else 3)")
      ->check(CLI::Range(1, 1000));
  command.add_option("--warmups", warmups, "Runs before them that do not count")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();

  command.add_option("--curve", curve, "No model: drafts on a simulated device, FILE: tokens,ms");
  command.add_flag("--check", check, "Fail unless dynamic drafts hold what they promise there");
  command.add_option("--convert", convert, "No model: recorded decode cells at another acceptance");
  command.add_option("--acceptance", acceptance, "Share of drafts that stand")
      ->check(finite_range(0, 1));

  command.add_option("--records", records, "Write a JSON line for each request and cell to FILE");
  command.add_flag("--gaps", gaps, "With every time between tokens in them");
  command.add_option("--pareto", pareto, "Draw tokens/s of a user against the device's: FILE.svg");
  command.add_flag(
      "--floor", floor,
      "Measure memory and arithmetic, and show how near decode or prefill comes to them");
  command.add_flag("--json", json, "The summary as JSON");
}

Status BenchOptions::check_flags(const CLI::App& command) {
  const BenchMode chosen = mode();
  chunk_given = command.count("--chunk") > 0;
  const std::array choices = {"--sweep", "--host", "--curve", "--convert"};
  const char* first = nullptr;
  for (const char* flag : choices) {
    if (command.count(flag) == 0) continue;
    if (first != nullptr) {
      return fail(ErrorCode::kConflictingOptions, "{} and {} exclude each other", first, flag);
    }
    first = flag;
  }
  for (const FlagUse& use : kUses) {
    if (command.count(use.flag) > 0 && (use.modes & static_cast<unsigned>(chosen)) == 0) {
      return fail(ErrorCode::kConflictingOptions, "{} has no effect with {}", use.flag,
                  name_of(chosen));
    }
  }
  if (workload != "synthetic") {
    for (const char* flag : {"--requests", "--prompt", "--shared-prefix"}) {
      if (command.count(flag) == 0) continue;
      return fail(ErrorCode::kConflictingOptions,
                  "{} is for the synthetic workload; {} says it itself", flag, workload);
    }
  }
  if (workload.empty()) {
    return fail(ErrorCode::kInvalidArgument, "--workload is empty; synthetic or a file");
  }
  if (!rates.empty() && !concurrency.empty()) {
    return fail(ErrorCode::kConflictingOptions, "--rate and --concurrency exclude each other");
  }
  if (!rates.empty() && !pareto.empty()) {
    return fail(ErrorCode::kConflictingOptions,
                "--pareto needs --concurrency: --rate has no number of users");
  }
  if (!records.empty() && records == pareto) {
    return fail(ErrorCode::kConflictingOptions, "--records and --pareto are the same file");
  }
  if (gaps && records.empty()) {
    return fail(ErrorCode::kConflictingOptions, "--gaps needs --records FILE");
  }
  if (chosen == BenchMode::kConvert && acceptance < 0) {
    return fail(ErrorCode::kInvalidArgument, "--convert needs --acceptance, 0 to 1");
  }
  if (chosen == BenchMode::kConvert && drafts.size() > 1) {
    return fail(ErrorCode::kInvalidArgument, "--convert takes one --draft, not {}",
                fmt::join(drafts, ","));
  }
  for (const std::string& name : drafts) {
    if (const auto policy = parse_draft_policy(name, kLongestDraft); !policy) {
      return fail(ErrorCode::kInvalidArgument, "--draft: {}", policy.error().message);
    }
  }
  CHECK_OK(LengthDistribution::parse("--prompt", prompt));
  CHECK_OK(LengthDistribution::parse("--output", output));
  return {};
}

}  // namespace tidemill::cli
