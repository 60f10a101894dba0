// Scratch memory of one step, sized once for the largest step.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "ops/backend.h"
#include "state/layout.h"

namespace tidemill {

struct Workspace {
  // Sizes are per token; see the ops for the meaning of widths.
  Rows h, h_spare;      // residual streams, and room for a selection of their rows
  Rows first_pre;       // the one row that the first half is handed: all weight on stream 0
  Rows x, x_spare;      // input of a sublayer
  Rows y;               // output of a sublayer
  Rows pre, pre_spare;  // `pre` that the attention half is handed
  Rows pre_ffn;         // `pre` that the attention half makes for the FFN half
  Rows post, comb;
  Rows query_latent, kv;
  Rows q, o, grouped;               // narrow rows
  std::byte* fresh = nullptr;       // packed window rows of this step
  int64_t* fresh_offset = nullptr;  // of each row in `fresh`
  Rows index_q, index_weight;
  Rows pair_kv;  // k and g side by side
  Rows latent, index_key;
  int32_t* selected = nullptr;
  int32_t* pool = nullptr;
  int32_t* expert_ids = nullptr;
  float* expert_weights = nullptr;
  Rows engram_values, engram_kvv, engram_gate;
  Rows taps, taps_spare, main_x;
  Rows rope_plain, rope_compressed;            // per token
  Rows rope_plain_tail, rope_compressed_tail;  // per token of the tail
  Rows rope_entries[3];                        // [ratio], per completed entry
  Rows rope_draft;
  Rows z;             // normalised rows for the head
  Rows draft_hidden;  // [., hidden + markov rank]: collapsed hidden, then the Markov embedding
  Rows draft_confidence;
  Drawn* drawn = nullptr;
  float* frequencies_plain = nullptr;
  float* frequencies_compressed = nullptr;

  static Result<Workspace> create(Backend& backend, const Config& config, const StateLayout& layout,
                                  int64_t max_tokens);
  int64_t bytes = 0;
  // What create() would allocate.
  static int64_t size_of(const Backend& backend, const Config& config, const StateLayout& layout,
                         int64_t max_tokens);

 private:
  std::vector<Backend::Buffer> buffers_;
};

}  // namespace tidemill
