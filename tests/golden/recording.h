// What the golden vectors of the bundled model hold of one prompt. `record_vectors` writes what the
// reference backend gives; the tests record again, on the backend under test, and compare.
#pragma once

#include <cstdint>
#include <span>

#include "fixture.h"
#include "npz.h"

namespace tidemill {

// n tokens, V of the vocabulary, L layers:
//   ids [n]
//   pos [P], logits [P, V]       around the edges of the window and of the lists, and the end
//   top8_ids, top8_logits [n, 8], logsumexp [n]
//   hidden_pos [H], hidden [L, H, streams * width]   bf16 bits of the streams after each layer
//   expert_ids [L, n, k]         ascending
//   L<layer>.sel [P, k]          entries that an index layer selects, ascending, -1 padded
//   engram_rows [tables, n, columns]
//   greedy [32], greedy_logits [32], greedy_gap [32]   token by token; the second best is behind
//   drafts [32, 5], conf [32, 5] after prompt + greedy[..i), anchor greedy[i]
//   replay_logits [V], replay_greedy [16]            decoder on the last window only, if n is
//   longer
NpzArrays record(Machine& machine, std::span<const int32_t> ids);

}  // namespace tidemill
