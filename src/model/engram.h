// Engram lookup rows from token ids: host arithmetic, exact in 64-bit integers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/config.h"

namespace tidemill {

// Everything follows from the configuration. Column (n-gram size, head) of a table has a prime; the
// primes ascend from engram_vocab_size on, across columns and then tables, and sum to a table's
// rows. Multipliers are numpy's default_rng(10007 * layer).integers(0, bound, ngram, int64) * 2 + 1
// with bound = floor(floor((2^63 - 1) / compressed_vocab) / 2). For ids v_0 (newest), v_1, ...
//   H_n = v_0 M_0 xor ... xor v_(n-1) M_(n-1);   row = offset of the column + H_n mod its prime.
// Immutable after build; any thread. A default-constructed one has no tables.
class EngramHash {
 public:
  // token_map: compressed id of every token id. Errors: kConfig when the primes' sums are not
  // the configured table sizes; kEngramMap when the map's size or range is not the configured one.
  // Without Engram layers the map is not looked at.
  static Result<EngramHash> build(const Config& config, std::vector<int32_t> token_map);

  // Rows of table `engram` for one position. ids: the token at the position first, then the ones
  // before it, newest first; fewer than ngram ids = start of the sequence, more are not read. A
  // negative id (image token) blocks itself and everything before it. Ids are below the map's size:
  // the caller has checked them. out: engram_columns() row numbers.
  void rows(int64_t engram, std::span<const int32_t> newest_first, int64_t* out) const;

  // The same from compressed ids (for tests).
  void rows_of_compressed(int64_t engram, std::span<const int64_t> newest_first,
                          int64_t* out) const;

  // Ids before the current one that rows() reads; 0 without tables.
  int64_t look_back() const { return ngram_ == 0 ? 0 : ngram_ - 1; }
  const std::vector<int64_t>& multipliers(int64_t engram) const {
    return multipliers_[static_cast<size_t>(engram)];
  }
  const std::vector<int64_t>& primes(int64_t engram) const {
    return primes_[static_cast<size_t>(engram)];
  }

 private:
  int64_t ngram_ = 0;
  int64_t heads_ = 0;
  int64_t pad_ = 0;  // compressed id of the padding token
  std::vector<int32_t> token_map_;
  std::vector<std::vector<int64_t>> multipliers_;  // [table][ngram]
  std::vector<std::vector<int64_t>> primes_;       // [table][column]
  std::vector<std::vector<int64_t>> offsets_;      // [table][column]
};

}  // namespace tidemill
