// Byte-pair encoding of one piece of text by a ranked list of merges.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tidemill {

// Immutable; const members may be called from any thread.
class BytePairEncoder {
 public:
  struct Merge {
    int32_t left;
    int32_t right;
    int32_t result;
  };

  // Buffers that many calls share; their content between calls means nothing.
  class Scratch;

  // byte_ids: the token of each single byte. merges: by rank, lowest first.
  // Errors: kTokenizer when a pair occurs twice.
  static Result<BytePairEncoder> build(const std::array<int32_t, 256>& byte_ids,
                                       std::vector<Merge> merges);

  // Appends the tokens of `piece`: starting from single bytes, the adjacent pair of lowest rank is
  // merged, the leftmost first among equals, until no pair has a merge. O(n log n).
  void encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  BytePairEncoder(const std::array<int32_t, 256>& byte_ids, std::vector<Merge> merges);
  int32_t rank(int32_t left, int32_t right) const;
  size_t home_slot(int32_t left, int32_t right) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<Merge> merges_;
  // Open addressing by pair: the rank, or kNoMerge where the slot is free. A power of two, at most
  // half full.
  std::vector<int32_t> slots_;
};

class BytePairEncoder::Scratch {
  friend class BytePairEncoder;

  // A token of the piece under work. Symbols form a list in text order inside one array.
  struct Symbol {
    int32_t id;
    int32_t rank;  // of the pair (this, next), or kNoMerge
    size_t previous;
    size_t next;
  };
  struct Candidate {
    int32_t rank;
    size_t position;
    // Turns the max-heap of the standard library into lowest rank first, then leftmost.
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

}  // namespace tidemill
