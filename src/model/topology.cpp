#include "model/topology.h"

#include <fmt/format.h>

#include <algorithm>

namespace tidemill {

namespace {

Status check_ids(std::string_view key, const std::vector<int64_t>& ids, int64_t layers) {
  int64_t previous = -1;
  for (const int64_t id : ids) {
    if (id < 0 || id >= layers) {
      return fail(ErrorCode::kConfig, "config.json: {} names layer {}, but there are {} layers",
                  key, id, layers);
    }
    if (id <= previous) {
      return fail(ErrorCode::kConfig,
                  "config.json: {} must ascend without repeats, but {} follows {}", key, id,
                  previous);
    }
    previous = id;
  }
  return {};
}

bool contains(const std::vector<int64_t>& ids, int64_t id) {
  return std::binary_search(ids.begin(), ids.end(), id);
}

// Position of `id` in `ids`, -1 when it is not there.
int64_t number_of(const std::vector<int64_t>& ids, int64_t id) {
  const auto found = std::lower_bound(ids.begin(), ids.end(), id);
  return found == ids.end() || *found != id ? -1 : found - ids.begin();
}

// Caches in layer order: a layer reads the latest one that it or an earlier layer owns.
Status assign_caches(const Config& config, Topology& out) {
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    LayerRole& role = out.layers[i];
    role.ratio = config.compress_ratios[i];
    role.owns_kv = contains(config.kv_source_layer_ids, i);
    if (role.ratio < 0 || role.ratio > 2) {
      return fail(ErrorCode::kConfig, "config.json: compress_ratios[{}] is {}; expected 0, 1 or 2",
                  i, role.ratio);
    }
    if (role.owns_kv && role.ratio == 0) {
      return fail(ErrorCode::kConfig,
                  "config.json: layer {} is in kv_source_layer_ids, but its compress ratio is 0",
                  i);
    }
    if (role.owns_kv) out.kv_sources.push_back({i, role.ratio});
    if (role.ratio == 0) continue;
    if (out.kv_sources.empty()) {
      return fail(ErrorCode::kConfig,
                  "config.json: layer {} (ratio {}) reads a cache that no layer before it owns", i,
                  role.ratio);
    }
    const KvSource& source = out.kv_sources.back();
    if (source.ratio != role.ratio) {
      return fail(ErrorCode::kConfig,
                  "config.json: layer {} has ratio {}, but the cache it reads, of layer {}, has "
                  "ratio {}",
                  i, role.ratio, source.layer, source.ratio);
    }
    role.kv_source = static_cast<int64_t>(out.kv_sources.size()) - 1;
  }
  return {};
}

// Every layer with a cache has a selection made on that cache, by itself or by the latest index
// source before it.
Status assign_selections(const Config& config, Topology& out) {
  int64_t latest = -1;
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    LayerRole& role = out.layers[i];
    role.owns_index = contains(config.index_source_layer_ids, i);
    if (role.owns_index && role.ratio == 0) {
      return fail(ErrorCode::kConfig,
                  "config.json: layer {} is in index_source_layer_ids, but its compress ratio is 0",
                  i);
    }
    if (role.owns_index) latest = i;
    if (role.ratio == 0) continue;
    if (latest < 0) {
      return fail(ErrorCode::kConfig,
                  "config.json: layer {} (ratio {}) needs a selection, but no layer up to it is in "
                  "index_source_layer_ids",
                  i, role.ratio);
    }
    const int64_t selected_on = out.layers[latest].kv_source;
    if (selected_on != role.kv_source) {
      return fail(ErrorCode::kConfig,
                  "config.json: layer {} reads the cache of layer {}, but the latest index source, "
                  "layer {}, selects from the cache of layer {}",
                  i, out.kv_sources[role.kv_source].layer, latest,
                  out.kv_sources[selected_on].layer);
    }
  }
  return {};
}

// Index sources after the candidate source choose inside its pool, as long as they read its cache.
Status assign_pool(const Config& config, Topology& out) {
  const int64_t source = config.candidate_source_layer_id;
  if (source < 0) return {};
  if (!contains(config.index_source_layer_ids, source)) {
    return fail(ErrorCode::kConfig,
                "config.json: candidate_source_layer_id is {}, which is not in "
                "index_source_layer_ids",
                source);
  }
  out.layers[source].builds_pool = true;
  for (int64_t i = source + 1; i < config.num_hidden_layers; ++i) {
    LayerRole& role = out.layers[i];
    role.reads_pool = role.owns_index && role.kv_source == out.layers[source].kv_source;
  }
  return {};
}

// Prefill may run the layers from the last owner on for the tail only, if none of them needs more
// of its input than the last cache holds.
void assign_decoder(Topology& out) {
  const auto layers = static_cast<int64_t>(out.layers.size());
  out.decoder_begin = out.kv_sources.empty() ? layers : out.kv_sources.back().layer;
  const auto last = static_cast<int64_t>(out.kv_sources.size()) - 1;
  const bool all_read_it =
      std::all_of(out.layers.begin() + out.decoder_begin, out.layers.end(),
                  [&](const LayerRole& role) { return role.kv_source == last; });
  if (!all_read_it) out.decoder_begin = layers;
  for (int64_t i = out.decoder_begin; i < layers; ++i) out.layers[i].decoder = true;
}

}  // namespace

Result<Topology> Topology::build(const Config& config) {
  const int64_t layers = config.num_hidden_layers;
  if (layers < 1 || static_cast<int64_t>(config.compress_ratios.size()) < layers) {
    return fail(ErrorCode::kConfig, "config.json: compress_ratios has {} entries for {} layers",
                config.compress_ratios.size(), layers);
  }
  CHECK_OK(check_ids("kv_source_layer_ids", config.kv_source_layer_ids, layers));
  CHECK_OK(check_ids("index_source_layer_ids", config.index_source_layer_ids, layers));
  CHECK_OK(check_ids("engram_layer_ids", config.engram_layer_ids, layers));
  CHECK_OK(check_ids("dspark_target_layer_ids", config.dspark_target_layer_ids, layers));

  Topology topology;
  topology.layers.resize(layers);
  CHECK_OK(assign_caches(config, topology));
  CHECK_OK(assign_selections(config, topology));
  CHECK_OK(assign_pool(config, topology));
  for (int64_t i = 0; i < layers; ++i) {
    topology.layers[i].engram = number_of(config.engram_layer_ids, i);
    topology.layers[i].tap = number_of(config.dspark_target_layer_ids, i);
  }
  assign_decoder(topology);
  return topology;
}

}  // namespace tidemill
