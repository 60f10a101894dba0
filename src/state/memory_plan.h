// One budget of bytes divided among everything a running engine needs, before it is allocated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "state/layout.h"

namespace tidemill {

struct MemoryOptions {
  int64_t budget_bytes = 0;
  int64_t context = 0;          // tokens of the longest sequence that must fit
  int64_t sequences = 1;        // slots wanted; fewer if the budget says so, but one at least
  int64_t weights_bytes = 0;    // resident weights, Engram tables included where they are
  int64_t workspace_bytes = 0;  // Forward::workspace_bytes()
  // Part of the state's memory for window snapshots; less if one sequence would not fit otherwise.
  double snapshot_share = 1.0 / 16;
};

struct MemoryPlan {
  struct Section {
    std::string name;
    double bytes_per_token = 0;      // of a sequence; 0: does not grow with its length
    int64_t bytes_per_sequence = 0;  // whatever its length
    int64_t bytes = 0;               // in all
  };

  int64_t slots = 0;
  int64_t blocks = 0;
  int64_t snapshot_bytes = 0;
  int64_t budget_bytes = 0;
  int64_t block_bytes_per_token = 0;  // all global caches, rounded up
  std::vector<Section> sections;      // in the order of the table; their bytes add up to the budget

  // Errors: kInvalidArgument (a size that is negative or 0), kNoCapacity (one sequence of the
  // context does not fit: both numbers, and the context that would).
  static Result<MemoryPlan> make(const StateLayout& layout, const MemoryOptions& options);

  int64_t tokens() const { return blocks * kBlockTokens; }
  std::string table() const;
};

}  // namespace tidemill
