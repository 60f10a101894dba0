// Weights that do not fit the memory: routed experts and Engram tables stay in the mapped file, and
// the experts that are wanted most have a copy in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "model/model.h"

namespace tidemill {

// Bytes of a checkpoint by what becomes of them when memory is short.
struct WeightResidency {
  int64_t always = 0;   // in memory whatever happens: everything but the two below
  int64_t experts = 0;  // routed experts of the backbone
  int64_t tables = 0;   // Engram tables: always in the file
  int64_t largest_expert = 0;
  int64_t experts_per_layer = 0;  // that one token chooses

  static WeightResidency of(const Model& model);
  // Does everything fit?
  bool fits(int64_t memory_bytes) const { return memory_bytes >= always + experts + tables; }
  // The least memory that a pager takes: room for the experts of two tokens in a layer.
  int64_t least_bytes() const { return always + 2 * experts_per_layer * slot_bytes(); }
  int64_t slot_bytes() const { return (largest_expert + 4095) / 4096 * 4096; }  // of one expert
};

// Used by the thread that runs the forward pass. Reading happens on threads of its own and on the
// caller while it waits. A read that fails is logged, and its expert is used from the mapping.
// The same weights, so the same results, wherever they are.
class WeightPager {
 public:
  struct Counters {
    int64_t hits = 0;       // experts that were in memory when they were asked for
    int64_t predicted = 0;  // of them, those read because the step before had used them
    int64_t misses = 0;     // read while the forward pass waited
    int64_t mapped = 0;     // used from the mapping: a step wanted more than there is room for
  };

  // `memory_bytes`: for all weights. Errors: kInvalidArgument below least_bytes();
  // kOutOfMemory; kFileRead. The model must outlive it.
  static Result<std::unique_ptr<WeightPager>> create(const Model& model, int64_t memory_bytes,
                                                     int readers = 4);
  ~WeightPager();

  // Experts of a backbone layer, of which those that `ids` name may be used until the next call;
  // ids may repeat. Waits for what is not in memory yet. Then begins to read what the next layer
  // used last time: consecutive tokens often choose alike.
  std::span<const ExpertWeights> acquire(int64_t layer, std::span<const int32_t> ids);

  // Begins to read rows of an Engram table; negative ones are skipped.
  void prefetch_rows(const Matrix& table, std::span<const int64_t> rows);

  int64_t slots() const;  // experts that have room in memory
  const Counters& counters() const;

 private:
  class Impl;
  explicit WeightPager(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidemill
