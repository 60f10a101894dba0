#include "cli/load/options.h"

namespace tidemill::cli {
namespace {

constexpr int64_t kMaxConnections = 1 << 16;
constexpr int64_t kMaxPrefixes = 1'000'000;
constexpr double kDefaultSeconds = 30;

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

Result<Json> parse_extra(const std::string& text) {
  auto json = parse_json(text);
  if (!json) return fail(ErrorCode::kInvalidArgument, "--extra: {}", json.error().message);
  if (!json->is_object()) {
    return fail(ErrorCode::kInvalidArgument, "--extra is not a JSON object such as {}",
                R"({"temperature": 0})");
  }
  for (const char* key : {"stream", "stream_options"}) {
    if (!json->contains(key)) continue;
    return fail(ErrorCode::kInvalidArgument, "--extra cannot set \"{}\": answers must stream", key);
  }
  return json;
}

}  // namespace

ArrivalProcess LoadOptions::process() const {
  if (!trace.empty()) return ArrivalProcess::kTrace;
  return arrivals == "poisson" ? ArrivalProcess::kPoisson : ArrivalProcess::kConstant;
}

LoadEndpoint LoadOptions::load_endpoint() const {
  return endpoint == "chat" ? LoadEndpoint::kChat : LoadEndpoint::kCompletions;
}

void LoadOptions::add_to(CLI::App& command) {
  command.add_option("--url", url, "The server; plain HTTP only, no https")->capture_default_str();
  command.add_option("--endpoint", endpoint, "Which of /v1/chat/completions and /v1/completions")
      ->check(CLI::IsMember({"chat", "completions"}))
      ->capture_default_str();
  command.add_option("--model", model, "Its name (default: the first of /v1/models)");
  command.add_option("--api-key-env", api_key_env, "The environment variable that holds the key");

  command.add_option("--rate", rate, "Requests per second")
      ->check(finite_range(1e-3, 1e6))
      ->capture_default_str();
  command.add_option("--arrivals", arrivals, "Random or evenly spaced")
      ->check(CLI::IsMember({"poisson", "constant"}))
      ->capture_default_str();
  command.add_option("--trace", trace,
                     "Instead: FILE of JSON lines with \"t\" in seconds and perhaps "
                     "\"prompt_tokens\", \"prompt\" or \"messages\", \"max_tokens\", \"priority\"; "
                     "- is stdin");
  command.add_option("--requests", requests, "At most so many")
      ->check(CLI::Range(int64_t{1}, kMaxBenchRequests));
  command
      .add_option("--duration", duration_s,
                  "No arrivals after so many seconds (default: 30, unless --requests or --trace)")
      ->check(finite_range(1e-3, kMaxTraceSeconds));
  command.add_option("--warmup", warmup, "Requests before, one by one, that do not count")
      ->check(CLI::Range(int64_t{0}, int64_t{100'000}))
      ->capture_default_str();
  command.add_option("--seed", seed, "Of arrivals, lengths and words")->capture_default_str();
  command
      .add_option("--connections", connections,
                  "Open at most; a request that finds none free waits, and the report says so")
      ->check(CLI::Range(int64_t{1}, kMaxConnections))
      ->capture_default_str();
  command.add_option("--timeout", timeout_s, "Seconds for a request, from its intended time")
      ->check(finite_range(1e-3, 86400))
      ->capture_default_str();

  command
      .add_option("--prompt-tokens", prompt_tokens,
                  "LOW:HIGH or N, made of words, so about; usage in the report is exact")
      ->capture_default_str();
  command.add_option("--output-tokens", output_tokens, "max_tokens, likewise")
      ->capture_default_str();
  command
      .add_option("--prefix-share", prefix_share, "Share of each prompt that is a common beginning")
      ->check(finite_range(0, 1));
  command.add_option("--prefix-tokens", prefix_tokens, "Or: common tokens in front of each prompt")
      ->check(CLI::Range(int64_t{1}, kMaxBenchTokens));
  command.add_option("--prefixes", prefixes, "Different beginnings, evenly chosen")
      ->check(CLI::Range(int64_t{1}, kMaxPrefixes))
      ->capture_default_str();
  command.add_flag("--ignore-eos", ignore_eos, "Ask for answers of exactly max_tokens");
  command.add_option("--extra", extra, "JSON object merged into every body");

  command.add_option("--slo", slo,
                     "For goodput: ttft=500ms,itl=50ms,e2e=10s; also tpot, stall (longest gap)");
  command.add_option("--out", out, "Write a JSON line for each request to FILE");
  command.add_flag("--gaps", gaps, "With every time between chunks in them");
  command.add_flag("--json", json, "The summary as JSON");
}

Status LoadOptions::check_flags(const CLI::App& command) {
  const auto excludes = [&](const char* first, const char* second) -> Status {
    if (command.count(first) == 0 || command.count(second) == 0) return {};
    return fail(ErrorCode::kConflictingOptions, "{} and {} exclude each other", first, second);
  };
  CHECK_OK(excludes("--trace", "--rate"));
  CHECK_OK(excludes("--trace", "--arrivals"));
  CHECK_OK(excludes("--prefix-share", "--prefix-tokens"));
  if (prefixes > 1 && prefix_share == 0 && prefix_tokens == 0) {
    return fail(ErrorCode::kConflictingOptions,
                "--prefixes needs --prefix-share or --prefix-tokens");
  }
  if (gaps && out.empty()) {
    return fail(ErrorCode::kConflictingOptions, "--gaps needs --out FILE");
  }
  if (trace.empty() && command.count("--trace") > 0) {
    return fail(ErrorCode::kInvalidArgument, "--trace is empty; a file, or - for stdin");
  }
  if (requests == 0 && duration_s == 0 && trace.empty()) duration_s = kDefaultSeconds;
  TRY(server, parse_url("--url", url));
  TRY(shape.prompt, parse_lengths("--prompt-tokens", prompt_tokens));
  TRY(shape.output, parse_lengths("--output-tokens", output_tokens));
  shape.prefixes = prefixes;
  shape.prefix_tokens = prefix_tokens;
  shape.prefix_share = prefix_share;
  shape.seed = seed;
  if (command.count("--slo") > 0) {
    TRY(limits, parse_slo(slo));
  }
  if (command.count("--extra") > 0) {
    TRY(extra_fields, parse_extra(extra));
  }
  return {};
}

}  // namespace tidemill::cli
