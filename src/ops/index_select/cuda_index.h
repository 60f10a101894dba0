// The two halves of the fast lightning indexer, for 32 heads of 128 and pools of blocks of 8.
//
// A score travels as a 16-bit key: the order of its bf16 value, both zeros being equal; 0 is -inf,
// which is never selected.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/index_select/index_select.h"

namespace tidemill::cuda {

constexpr int kIndexHeads = 32;
constexpr int kIndexDim = 128;
constexpr int kPoolBlock = 8;

// Keys of the scores of tokens first .. first + count - 1 of args, one row of `stride` for each
// (a multiple of 8, from an address that is one of 16).
struct ScoreRows {
  IndexSelectArgs args;
  int64_t first = 0;
  int64_t count = 0;
  uint16_t* data = nullptr;
  int64_t stride = 0;
  // Entry 8 i + k of a row is entry k of block i of the token's pool_in; otherwise i of the cache.
  bool gathered = false;
};

// Fills the rows as far as their tokens see; what lies behind is not defined. `range`: entries of a
// block of threads, a multiple of 256.
void index_scores(cudaStream_t stream, const ScoreRows& rows, int64_t range);
// One that keeps the device busy and its blocks of threads long.
int64_t index_range(const ScoreRows& rows);

// What is selected from a row.
enum class Selected {
  kEntries,  // visible ones
  kInPool,   // visible ones of the pool's blocks
  kBlocks,   // by their best visible entry; the newest is always in
};

// The k best of each row, as ascending numbers of entries or blocks in a row of `out`, padded with
// -1; equal scores: the lower number. k is kMostSelected at most.
constexpr int64_t kMostSelected = 8192;
// `blocks`: blocks of threads of a row: 1, 2, 4 or 8.
void index_best(cudaStream_t stream, const ScoreRows& rows, Selected what, int64_t k, int32_t* out,
                int blocks);
// So many that one row is fast, and many rows are.
int index_best_blocks(const ScoreRows& rows, Selected what);

}  // namespace tidemill::cuda
