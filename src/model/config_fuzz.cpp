// libFuzzer: any text as config.json and generation_config.json. What is accepted must give a
// topology or an error, and a hash whose rows lie inside their tables.
#include <cstdlib>

#include "model/config.h"
#include "model/engram.h"
#include "model/topology.h"

namespace {

void check_engram(const tidemill::Config& config) {
  // Only sizes that a fuzzer affords.
  if (config.vocab_size > 1000 || config.engram_vocab_size > 1'000'000) return;
  std::vector<int32_t> map(static_cast<size_t>(config.vocab_size));
  for (size_t i = 0; i < map.size(); ++i) {
    map[i] = static_cast<int32_t>(static_cast<int64_t>(i) % config.engram_compressed_vocab_size);
  }
  const auto hash = tidemill::EngramHash::build(config, map);
  if (!hash) return;
  std::vector<int64_t> rows(static_cast<size_t>(config.engram_columns()));
  const std::vector<int32_t> ids(8, static_cast<int32_t>(map.size()) - 1);
  for (size_t table = 0; table < config.engram_layer_ids.size(); ++table) {
    hash->rows(static_cast<int64_t>(table), ids, rows.data());
    for (const int64_t row : rows) {
      if (row < 0 || row >= config.engram_num_embeddings[table]) std::abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)tidemill::GenerationConfig::parse(text);
  const auto config = tidemill::Config::parse(text);
  if (!config) return 0;
  (void)tidemill::Topology::build(*config);
  if (!config->engram_layer_ids.empty()) check_engram(*config);
  return 0;
}
