// Where everything lies inside a block and inside a slot; derived from the configuration once.
//
// A block holds 128 tokens of the global KV of every source (entries and index keys). A slot holds
// what belongs to one sequence: a ring of window rows per layer, the drafter's rings, and the
// half-open compressor pairs. Every part is addressed by position, so going back to a shorter
// length needs no copying, and a window can be copied some tokens later: rings have `reach` rows
// more than the window.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "model/topology.h"
#include "ops/backend.h"

namespace tidemill {

inline constexpr int64_t kBlockTokens = 128;

struct StateLayout {
  struct Source {
    int64_t ratio = 1;
    int64_t rows_per_block = 0;
    int64_t entry_offset = 0;    // inside a block
    int64_t key_offset = 0;      // inside a block
    int64_t pending_offset = 0;  // inside a slot; ratio 2 only
  };
  ProductOrder order = ProductOrder::kPairLanes;  // of the products that the rows come from
  RowFormat window;
  RowFormat entry;
  RowFormat key;
  std::vector<Source> sources;
  int64_t block_bytes = 0;

  int64_t window_tokens = 0;
  int64_t rollback = 0;              // positions that a step may be undone by
  int64_t reach = 0;                 // positions by which a window may be passed, and be whole
  int64_t ring_rows = 0;             // window + reach
  std::vector<int64_t> ring_offset;  // per backbone layer, inside a slot
  int64_t saved_layers = 0;          // the layers before the decoder half
  std::vector<int64_t> draft_ring_offset;  // per drafter stage, inside a slot
  int64_t pending_rows = 0;                // position p lies in row p mod pending_rows
  int64_t pending_row_bytes = 0;           // k and g, float32
  int64_t slot_bytes = 0;

  int64_t blocks_for(int64_t tokens) const { return (tokens + kBlockTokens - 1) / kBlockTokens; }

  // Tokens of an input that must be computed when its windows are not all restored: the last rows
  // of the decoder, enough for a window and for undoing a draft.
  int64_t recomputed_tail() const { return window_tokens + rollback; }
  // Shortest input that can reuse anything, given all windows.
  int64_t smallest_reusable_prefix() const { return kBlockTokens + 1; }

  // Number formats, product order and arrangement as text: part of every content key.
  std::string fingerprint() const;

  // Error kConfig when the layout cannot work, e.g. a ratio that does not divide the block.
  static Result<StateLayout> build(const Config& config, const Topology& topology,
                                   const Backend& backend);
};

}  // namespace tidemill
