// Which layer owns, selects and reuses what: answered once, when a checkpoint is loaded. Nothing
// else in the code compares layer numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "model/config.h"

namespace tidemill {

struct LayerRole {
  int64_t ratio = 0;        // tokens per compressed entry that the layer reads; 0: window only
  int64_t kv_source = -1;   // number (not layer id) of the cache it reads; -1: none
  bool owns_kv = false;     // has the compressor and the index keys of that cache
  bool owns_index = false;  // runs an indexer; otherwise reuses the latest selection
  bool builds_pool = false;
  bool reads_pool = false;  // its indexer is restricted to the candidate pool
  int64_t engram = -1;      // number of the Engram table applied before this layer
  int64_t tap = -1;         // number of the drafter tap taken from this layer's input
  bool decoder = false;     // at or after decoder_begin: prefill may run it on the tail only
};

struct KvSource {
  int64_t layer = 0;
  int64_t ratio = 1;
};

struct Topology {
  std::vector<LayerRole> layers;
  std::vector<KvSource> kv_sources;
  // Layer that owns the last cache, if every layer after it reads that cache: their global KV then
  // comes from its input alone. Otherwise the number of layers: no bounded replay.
  int64_t decoder_begin = 0;

  // Errors: kConfig, e.g. "layer 7 (ratio 2) reads a cache that no layer before it owns".
  static Result<Topology> build(const Config& config);
};

}  // namespace tidemill
