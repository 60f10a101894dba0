#include "text/engram_token_map.h"

#include <string>
#include <unordered_map>

#include "text/normalize.h"

namespace tidemill {
namespace {

constexpr std::string_view kReplacement = "\uFFFD";

std::string engram_key(const Tokenizer& tokenizer, int32_t id) {
  std::string text = tokenizer.decode({&id, 1});
  if (text.find(kReplacement) != std::string::npos) return std::string(tokenizer.raw(id));
  std::string normal = normalize_for_engram(text);
  return normal.empty() ? text : normal;
}

}  // namespace

EngramTokenMap engram_token_map(const Tokenizer& tokenizer) {
  EngramTokenMap map;
  map.ids.reserve(tokenizer.size());
  std::unordered_map<std::string, int32_t> ids_by_key;
  for (int32_t id = 0; id < tokenizer.size(); ++id) {
    const auto [entry, fresh] =
        ids_by_key.try_emplace(engram_key(tokenizer, id), static_cast<int32_t>(ids_by_key.size()));
    map.ids.push_back(entry->second);
  }
  map.distinct = static_cast<int32_t>(ids_by_key.size());
  return map;
}

}  // namespace tidemill
