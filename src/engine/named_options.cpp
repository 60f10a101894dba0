#include "engine/named_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "base/escape.h"
#include "base/thread_team.h"
#include "engine/named_backends.h"
#include "model/config.h"
#include "sample/grammar_pool.h"

namespace tidemill {
namespace {

using Path = std::filesystem::path Options::*;
using Text = std::string Options::*;
using Flag = bool Options::*;
using Int = int Options::*;
using Integer = int64_t Options::*;
using Number = double Options::*;
using Numbers = std::vector<float> Options::*;

struct Key {
  std::string_view name;
  std::variant<Path, Text, Flag, Int, Integer, Number, Numbers> field;
  std::string_view range;  // for people; of numbers [least, most] is put before it
  int64_t least = 0;
  int64_t most = INT64_MAX;
};

constexpr int64_t kMaxSequences = 65536;
constexpr int64_t kMaxStepTokens = 65536;
constexpr int64_t kMaxWaiting = int64_t{1} << 24;
constexpr int64_t kMaxGrammarDepth = 1000;

const Key kKeys[] = {
    {"model", &Options::model, "a checkpoint directory"},
    {"backend", &Options::backend, backend_list()},
    {"threads", &Options::threads, "; 0: as many as there are CPUs", 0, ThreadTeam::kMaxThreads},
    {"alias_bytes", &Options::alias_bytes, " of random weights; 0: the model's own"},
    {"fill_context", &Options::fill_context, " tokens of random state; 0: none", 0, kMaxContext},
    {"memory_bytes", &Options::memory_bytes, " for weights; 0: all of them"},
    {"huge_pages", &Options::huge_pages, "auto, on or off"},
    {"context", &Options::context, " tokens; 0: the model's limit", 0, kMaxContext},
    {"sequences", &Options::sequences, "; 0: chosen by backend and max_step_tokens", 0,
     kMaxSequences},
    {"state_bytes", &Options::state_bytes, "; 0: by context and sequences"},
    {"pool_blocks", &Options::pool_blocks, "; 0: by state_bytes"},
    {"suspend_bytes", &Options::suspend_bytes, "; 0: none"},
    {"max_step_tokens", &Options::max_step_tokens, "; 0: chosen by backend and sequences", 0,
     kMaxStepTokens},
    {"step_ms", &Options::step_ms, "; 0: no limit"},
    {"drafts", &Options::drafts, "off, fixed:N, dynamic, dynamic-lagged or dynamic-early-stop"},
    {"verification", &Options::verification, "keyed or rejection"},
    {"confidence_temperatures", &Options::confidence_temperatures,
     "none, one, or one number for each draft position, with commas between them"},
    {"prefix_cache", &Options::prefix_cache, "true or false"},
    {"window_lifetime_s", &Options::window_lifetime_s, ", above 0"},
    {"replay_keep", &Options::replay_keep, " tokens; 0: off", 0, kMaxContext},
    {"encoder_replay", &Options::encoder_replay, "true or false"},
    {"max_waiting", &Options::max_waiting, "", 1, kMaxWaiting},
    {"max_tenant_waiting", &Options::max_tenant_waiting, "", 1, kMaxWaiting},
    {"grammar_cache_bytes", &Options::grammar_cache_bytes, ""},
    {"grammar_source_bytes", &Options::grammar_source_bytes, "", 1},
    {"grammar_depth", &Options::grammar_depth, "", 1, kMaxGrammarDepth},
    {"grammar_compile_ms", &Options::grammar_compile_ms, "", 1},
    {"grammar_threads", &Options::grammar_threads, "", 1, GrammarPool::kMaxThreads},
    {"own_thread", &Options::own_thread, "true or false"},
};

std::string range_of(const Key& key) {
  const bool integer =
      std::holds_alternative<Int>(key.field) || std::holds_alternative<Integer>(key.field);
  const bool number = integer || std::holds_alternative<Number>(key.field);
  if (!number) return std::string(key.range);
  const std::string_view kind = integer ? "a whole number" : "a number";
  if (key.most == INT64_MAX) return fmt::format("{} >= {}{}", kind, key.least, key.range);
  return fmt::format("{} from {} to {}{}", kind, key.least, key.most, key.range);
}

// All of the text as one number?
template <typename T>
bool parse(std::string_view text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// Takes the text into the field, or says that it is none of its values.
struct Setter {
  Options& options;
  const Key& key;
  std::string_view text;

  bool operator()(Path field) const {
    options.*field = text;
    return !text.empty();
  }
  bool operator()(Text field) const {
    options.*field = text;
    return true;
  }
  bool operator()(Flag field) const {
    options.*field = text == "true";
    return text == "true" || text == "false";
  }
  template <typename T>
  bool operator()(T Options::*field) const {
    T value{};
    if (!parse(text, value) || !(value >= static_cast<T>(key.least))) return false;
    options.*field = value;
    return std::is_floating_point_v<T> ? std::isfinite(static_cast<double>(value))
                                       : value <= static_cast<T>(key.most);
  }
  bool operator()(Numbers field) const {
    std::vector<float> values;
    for (std::string_view rest = text; !rest.empty();) {
      const size_t comma = std::min(rest.find(','), rest.size());
      if (!parse(rest.substr(0, comma), values.emplace_back())) return false;
      if (!std::isfinite(values.back()) || comma + 1 == rest.size()) return false;
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
    options.*field = std::move(values);
    return true;
  }
};

}  // namespace

Status set_option(Options& options, std::string_view key, std::string_view value) {
  const auto found = std::find_if(std::begin(kKeys), std::end(kKeys),
                                  [&](const Key& known) { return known.name == key; });
  if (found == std::end(kKeys)) {
    std::string names;
    for (const Key& known : kKeys)
      names += fmt::format("{}{}", names.empty() ? "" : ", ", known.name);
    return fail(ErrorCode::kInvalidArgument, "there is no option \"{}\" (value \"{}\"), but: {}",
                key.substr(0, 64), value.substr(0, 64), names);
  }
  Options changed = options;
  if (!std::visit(Setter{changed, *found, value}, found->field)) {
    return fail(ErrorCode::kInvalidArgument, "option {} is \"{}\", not {}", key,
                value.substr(0, 64), range_of(*found));
  }
  options = std::move(changed);
  return {};
}

std::string option_help() {
  std::string help;
  for (const Key& key : kKeys) help += fmt::format("{}  {}\n", key.name, range_of(key));
  return help;
}

}  // namespace tidemill
