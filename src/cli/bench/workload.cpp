#include "cli/bench/workload.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include "cli/input.h"
#include "text/json.h"

namespace tidemill::cli {
namespace {

constexpr double kMaxSigma = 5.0;
constexpr size_t kMaxTableRows = 1000;

std::optional<int64_t> parse_length(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || value < 1 || value > kMaxBenchTokens) return std::nullopt;
  return value;
}

std::optional<double> parse_number(std::string_view text, double least, double most) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (!whole || !(value >= least) || !(value <= most)) return std::nullopt;
  return value;
}

struct Halves {
  std::string_view first, second;
};

std::optional<Halves> split(std::string_view text, char separator) {
  const size_t at = text.find(separator);
  if (at == std::string_view::npos) return std::nullopt;
  return Halves{text.substr(0, at), text.substr(at + 1)};
}

}  // namespace

int64_t BenchRandom::between(int64_t first, int64_t last) {
  const auto count = static_cast<uint64_t>(last - first) + 1;
  return first + static_cast<int64_t>(engine_() % count);
}

// Box and Muller's; one of the pair is thrown away, which keeps the generator without state.
double BenchRandom::normal() {
  constexpr double kTwoPi = 6.283185307179586;
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return radius * std::cos(kTwoPi * uniform());
}

Result<LengthDistribution> LengthDistribution::parse(std::string_view flag, std::string_view text) {
  const auto wrong = [&] {
    return fail(ErrorCode::kInvalidArgument,
                "{} cannot be \"{}\"; one of fixed:N, uniform:A-B, lognormal:MEDIAN,SIGMA (SIGMA 0 "
                "to {}), table:N=WEIGHT,... with lengths from 1 to {}",
                flag, text, kMaxSigma, kMaxBenchTokens);
  };
  LengthDistribution made;
  made.text_ = text;
  const auto named = split(text, ':');
  if (!named) return wrong();
  const auto [name, values] = *named;
  if (name == "fixed") {
    const auto length = parse_length(values);
    if (!length) return wrong();
    made.first_ = made.last_ = *length;
  } else if (name == "uniform") {
    const auto ends = split(values, '-');
    const auto first = ends ? parse_length(ends->first) : std::nullopt;
    const auto last = ends ? parse_length(ends->second) : std::nullopt;
    if (!first || !last || *first > *last) return wrong();
    made.first_ = *first;
    made.last_ = *last;
  } else if (name == "lognormal") {
    const auto pair = split(values, ',');
    const auto median = pair ? parse_length(pair->first) : std::nullopt;
    const auto sigma = pair ? parse_number(pair->second, 0, kMaxSigma) : std::nullopt;
    if (!median || !sigma) return wrong();
    made.kind_ = Kind::kLognormal;
    made.median_ = static_cast<double>(*median);
    made.sigma_ = *sigma;
  } else if (name == "table") {
    made.kind_ = Kind::kTable;
    double sum = 0;
    for (std::string_view rest = values; !rest.empty();) {
      const size_t end = std::min(rest.find(','), rest.size());
      const auto pair = split(rest.substr(0, end), '=');
      const auto length = pair ? parse_length(pair->first) : std::nullopt;
      const auto weight = pair ? parse_number(pair->second, 0, 1e9) : std::nullopt;
      if (!length || !weight || made.table_.size() == kMaxTableRows) return wrong();
      sum += *weight;
      made.table_.push_back({*length, sum});
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    if (!(sum > 0)) return wrong();
    for (Row& row : made.table_) row.below /= sum;
  } else {
    return wrong();
  }
  return made;
}

int64_t LengthDistribution::draw(BenchRandom& random) const {
  switch (kind_) {
    case Kind::kUniform:
      return random.between(first_, last_);
    case Kind::kLognormal: {
      const double length = std::round(median_ * std::exp(sigma_ * random.normal()));
      return static_cast<int64_t>(std::clamp(length, 1.0, static_cast<double>(longest())));
    }
    case Kind::kTable: {
      const double share = random.uniform();
      for (const Row& row : table_) {
        if (share < row.below) return row.length;
      }
      return table_.back().length;
    }
  }
  return 1;
}

int64_t LengthDistribution::longest() const {
  switch (kind_) {
    case Kind::kUniform:
      return last_;
    case Kind::kLognormal:
      // Three standard deviations: one draw in 740 is cut to it, and a context can be planned.
      return static_cast<int64_t>(std::min(std::ceil(median_ * std::exp(3 * sigma_)),
                                           static_cast<double>(kMaxBenchTokens)));
    case Kind::kTable: {
      const auto shorter = [](const Row& a, const Row& b) { return a.length < b.length; };
      return std::max_element(table_.begin(), table_.end(), shorter)->length;
    }
  }
  return 1;
}

std::vector<int32_t> TokenSource::draw(int64_t count, BenchRandom& random) const {
  std::vector<int32_t> tokens;
  tokens.reserve(static_cast<size_t>(count));
  // A vocabulary of nothing else: better an odd prompt than none.
  const bool all = vocabulary <= static_cast<int64_t>(excluded.size());
  while (static_cast<int64_t>(tokens.size()) < count) {
    const auto token = static_cast<int32_t>(random.between(0, vocabulary - 1));
    const bool skip = std::find(excluded.begin(), excluded.end(), token) != excluded.end();
    if (all || !skip) tokens.push_back(token);
  }
  return tokens;
}

std::vector<WorkItem> synthetic_workload(const SyntheticWorkload& spec, const TokenSource& tokens) {
  BenchRandom random(spec.seed);
  const auto shared_of = [&](int64_t length) {
    return static_cast<int64_t>(std::llround(spec.shared_prefix * static_cast<double>(length)));
  };
  const std::vector<int32_t> common = tokens.draw(shared_of(spec.prompt.longest()), random);
  std::vector<WorkItem> items(static_cast<size_t>(spec.requests));
  for (WorkItem& item : items) {
    const int64_t length = spec.prompt.draw(random);
    const int64_t shared = shared_of(length);
    item.output_tokens = spec.output.draw(random);
    item.prompt.assign(common.begin(), common.begin() + shared);
    const std::vector<int32_t> own = tokens.draw(length - shared, random);
    item.prompt.insert(item.prompt.end(), own.begin(), own.end());
  }
  return items;
}

namespace {

Result<int64_t> read_length(const Json& json, const char* key) {
  if (json.is_number_integer() && json >= 1 && json <= kMaxBenchTokens) return json.get<int64_t>();
  return fail(ErrorCode::kRequest, "\"{}\" is not a whole number from 1 to {}", key,
              kMaxBenchTokens);
}

Result<std::vector<int32_t>> read_ids(const Json& json, int64_t vocabulary) {
  std::vector<int32_t> ids;
  if (!json.is_array()) return fail(ErrorCode::kRequest, "\"prompt_tokens\" is not an array");
  for (const Json& id : json) {
    if (!id.is_number_integer() || id < 0 || id >= vocabulary) {
      return fail(ErrorCode::kTokenOutOfRange,
                  "element {} of \"prompt_tokens\" is not a token id from 0 to {}", ids.size(),
                  vocabulary - 1);
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

Result<std::vector<int32_t>> read_prompt(const Json& json, const TokenSource& tokens,
                                         const EncodeText& encode, BenchRandom& random) {
  const int given =
      json.contains("prompt_tokens") + json.contains("prompt_length") + json.contains("prompt");
  if (given != 1) {
    return fail(ErrorCode::kRequest,
                "has {} of \"prompt_tokens\", \"prompt_length\" and \"prompt\"; exactly one",
                given);
  }
  if (json.contains("prompt_tokens")) return read_ids(json["prompt_tokens"], tokens.vocabulary);
  if (json.contains("prompt_length")) {
    TRY(const int64_t length, read_length(json["prompt_length"], "prompt_length"));
    return tokens.draw(length, random);
  }
  if (!json["prompt"].is_string()) return fail(ErrorCode::kRequest, "\"prompt\" is not a string");
  return encode(json["prompt"].get_ref<const std::string&>());
}

Result<WorkItem> read_item(std::string_view line, const LengthDistribution& output,
                           const TokenSource& tokens, const EncodeText& encode,
                           BenchRandom& random) {
  TRY(const Json json, parse_json(line));
  if (!json.is_object()) return fail(ErrorCode::kRequest, "is not a JSON object");
  WorkItem item;
  TRY(item.prompt, read_prompt(json, tokens, encode, random));
  if (item.prompt.empty()) return fail(ErrorCode::kRequest, "has an empty prompt");
  if (json.contains("output_length")) {
    TRY(item.output_tokens, read_length(json["output_length"], "output_length"));
  } else {
    item.output_tokens = output.draw(random);
    item.exact = json.contains("prompt_length");
  }
  return item;
}

}  // namespace

Result<std::vector<WorkItem>> read_workload(const std::filesystem::path& path,
                                            const LengthDistribution& output, uint64_t seed,
                                            const TokenSource& tokens, const EncodeText& encode) {
  TRY(const std::string text, read_input(path));
  BenchRandom random(seed);
  std::vector<WorkItem> items;
  std::string_view rest = text;
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto item = read_item(line, output, tokens, encode, random);
    if (!item) {
      return fail(item.error().code, "{}:{}: {}", input_name(path), number, item.error().message);
    }
    if (static_cast<int64_t>(items.size()) == kMaxBenchRequests) {
      return fail(ErrorCode::kRequest, "{}:{}: more than {} requests", input_name(path), number,
                  kMaxBenchRequests);
    }
    item->line = number;
    items.push_back(std::move(*item));
  }
  if (items.empty()) return fail(ErrorCode::kRequest, "{} holds no requests", input_name(path));
  return items;
}

std::vector<double> poisson_arrivals(int64_t count, double per_second, uint64_t seed) {
  BenchRandom random(seed);
  std::vector<double> times(static_cast<size_t>(count));
  double now = 0;
  for (double& time : times) {
    time = now;
    now += -std::log(1.0 - random.uniform()) / per_second;
  }
  return times;
}

Status check_lengths(std::span<const WorkItem> items, int64_t context) {
  for (size_t i = 0; i < items.size(); ++i) {
    const auto prompt = static_cast<int64_t>(items[i].prompt.size());
    if (prompt + items[i].output_tokens <= context) continue;
    const std::string name = items[i].line > 0
                                 ? fmt::format("the request of line {}", items[i].line)
                                 : fmt::format("request {}", i);
    return fail(ErrorCode::kContextLength,
                "{} needs {} tokens of prompt and {} of answer; the context holds {} (--context, "
                "or shorter lengths)",
                name, prompt, items[i].output_tokens, context);
  }
  return {};
}

}  // namespace tidemill::cli
