// What a device needs to know about one step: flat arrays, built on the host from the sequences.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "forward/step_array.h"
#include "model/config.h"
#include "model/engram.h"
#include "state/state_pool.h"

namespace tidemill {

enum class Logits : uint8_t { kNone, kLast, kAll };

// Tokens of one sequence that a step processes; they are appended to the sequence by the step.
struct StepItem {
  Sequence* sequence = nullptr;
  std::span<const int32_t> tokens;
  Logits logits = Logits::kLast;
};

// First position whose window rows are there, and so may be seen, in the layers before the decoder
// half and in those of it (and in the drafter). A replay starts with no window anywhere.
inline int64_t encoder_floor(const Sequence& s) { return std::max(int64_t{0}, s.replay_from); }
inline int64_t decoder_floor(const Sequence& s) {
  return std::max(encoder_floor(s), s.decoder_floor);
}

// The rows that a group of layers works on; row t is one token. Per-sequence arrays are indexed by
// the item's number in the step.
struct RowSet {
  int64_t count = 0;
  StepArray<int64_t> position;
  StepArray<int32_t> sequence;
  StepArray<int64_t> window_begin;  // first and one past the last visible window position
  StepArray<int64_t> window_end;
  StepArray<int64_t> step_start;  // per sequence: position of its first row in this set
  StepArray<int64_t> step_row;    // per sequence: number of that row
  StepArray<int64_t> ring_store;  // ring row of each token, from the start of the slots; -1: none
  StepArray<int64_t> visible[3];  // [ratio]: entries that each token may select
  int64_t most_visible[3] = {};   // [ratio]: the largest of them, or more
  StepArray<uint8_t> image;       // empty: no image tokens

  void clear();
  void list(std::vector<StagedArray>& arrays);
};

// Entries of one compression ratio that this step completes. Those of adopted tokens are there
// already: tokens that are replayed have none.
struct EntrySet {
  int64_t ratio = 1;
  StepArray<int64_t> position;        // of the entry's first token: its rotation
  StepArray<int64_t> last_row;        // row of the token that completes it
  StepArray<int64_t> first_row;       // row of its first token, -1: pending from earlier
  StepArray<int64_t> pending_offset;  // of the pending row, from the start of the slots
  StepArray<int64_t> entry_store;     // destinations from the start of the blocks
  StepArray<int64_t> key_store;
  StepArray<int64_t> pending_store;  // per row: where its k and g are kept; -1: not needed

  int64_t count() const { return position.count(); }
};

struct StepInput {
  StepArray<int64_t> ids;         // [T]
  RowSet all;                     // encoder layers, and every layer without a cut
  RowSet tail;                    // decoder layers under bounded replay
  bool cut = false;               // tail differs from all
  StepArray<int64_t> tail_row;    // row in `all` of each tail row
  StepArray<int64_t> logits_row;  // rows (of the decoder's set) whose logits are wanted
  StepArray<int64_t> draft_row;   // rows (of the decoder's set) kept in the drafter's rings
  StepArray<int64_t> draft_position;
  StepArray<int64_t> draft_store;                    // their ring rows, from the start of the slots
  std::vector<EntrySet> entries;                     // by ratio 1, 2
  std::vector<StepArray<int64_t>> engram_rows;       // [table]: [T, columns]
  std::vector<StepArray<int64_t>> engram_tail_rows;  // the same of the tail; without a cut empty
  StepArray<int64_t> ring_offset;                    // per sequence: its slot
  StepArray<int32_t> block_table;
  StepArray<int64_t> block_begin;  // per sequence: its first block in block_table

  const RowSet& decoder() const { return cut ? tail : all; }
  const EntrySet& entries_of(int64_t ratio) const {
    return entries[static_cast<size_t>(ratio - 1)];
  }
  // Every array, for Backend::stage: the one whose size belongs to no row is the last.
  std::vector<StagedArray> staged();

  // Whether every row has an entry of ratio 1 and wants its logits, as those of decode steps and
  // verifications do: then the number of rows says what ops the step has.
  bool uniform() const;
  // Fills a uniform step up to `rows` with copies of its last row that leave nothing in any cache:
  // they choose the experts that are read anyway. All arrays get as many elements, and bounds are
  // rounded up, so that steps of one size differ in values only.
  void fill_up(int64_t rows);
};

// Two equivalent ways to run a cut (bounded replay): compute every row and hide what the tail must
// not see, or pack the tail's rows. Equal bit for bit.
enum class ReplayForm : uint8_t { kCompact, kMask };

// Fills `input` for items whose sequences have blocks reserved and whose tokens are inside the
// vocabulary. `engram` has a table for each of config.engram_layer_ids.
void build_step_input(const Config& config, const EngramHash& engram, const StateLayout& layout,
                      ReplayForm form, std::span<const StepItem> items, StepInput& input);

}  // namespace tidemill
