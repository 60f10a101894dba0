// A loaded checkpoint: configuration, topology, tokenizer-derived Engram map, weight views.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "model/engram.h"
#include "model/resident_checkpoint.h"
#include "model/safetensors.h"
#include "model/topology.h"
#include "model/weights.h"
#include "text/tokenizer.h"

namespace tidemill {

struct LoadOptions {
  // Called with a fraction in 0..1 from the loading thread.
  std::function<void(double)> progress;
  // Reads all weights once, so that the first request does not wait for the disk; ignored when they
  // exceed the memory. Without it only the scales are read, to check them.
  bool prefault = true;
  // Not 0: so much memory is for weights. Where they are more, routed experts and Engram tables are
  // not read now (weight_pager.h).
  int64_t memory_bytes = 0;
  // Not 0: the directory has no weights, only config.json and a tokenizer; random ones of the
  // configured shapes take their place in so many bytes (aliased_checkpoint.h). For measurements.
  int64_t alias_bytes = 0;
  int64_t alias_period = 0;  // aliased_checkpoint's
  // Are the weights read into huge pages (resident_checkpoint.h), instead of mapped? kAuto: where
  // why_mapped() has no reason against it and memory_bytes is 0. Does not matter to alias_bytes.
  HugePages huge_pages = HugePages::kOff;
  // Of the team that will use the weights: where they are read into memory of their own, each of
  // its parts is near those who read it most.
  NodeShares nodes = {};
};

// Immutable after load; shared by every thread. Holds the memory that the views point into.
class Model {
 public:
  // A directory as downloaded. Reads config.json, tokenizer.json, engram_token_map.i32 if present
  // (otherwise the map is derived from the tokenizer; a present file is checked by size and
  // range), and all weights. Vision tensors are skipped. Every scale byte of 255 (NaN) is an
  // error that names the tensor (kTensorValue); other tensors that nothing uses are a warning in
  // the log. Errors: those of Config, Topology, Tokenizer, EngramHash, Checkpoint, bind_weights,
  // resident_checkpoint; kConflictingOptions (HugePages::kOn with memory_bytes).
  static Result<std::unique_ptr<Model>> load(const std::filesystem::path& directory,
                                             const LoadOptions& options = {});

  const Config& config() const { return config_; }
  // Names at least one end-of-sequence id: config.json's where the file has none.
  const GenerationConfig& generation() const { return generation_; }
  const Topology& topology() const { return topology_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const EngramHash& engram() const { return engram_; }
  const ModelWeights& weights() const { return weights_; }
  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  Model() = default;
  Config config_;
  GenerationConfig generation_;
  Topology topology_;
  std::unique_ptr<Tokenizer> tokenizer_;
  EngramHash engram_;
  Checkpoint checkpoint_;
  ModelWeights weights_;
  std::vector<std::unique_ptr<std::byte[]>> aligned_;  // BoundWeights::aligned
};

}  // namespace tidemill
