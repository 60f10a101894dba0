#include "model/engram.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <limits>
#include <numeric>
#include <utility>

#include "model/numpy_random.h"

namespace tidemill {

namespace {

bool is_prime(int64_t n) {
  if (n % 2 == 0) return n == 2;
  for (int64_t d = 3; d * d <= n; d += 2) {
    if (n % d == 0) return false;
  }
  return n > 1;
}

int64_t prime_above(int64_t n) {
  do {
    ++n;
  } while (!is_prime(n));
  return n;
}

// Odd, so that a multiplication loses nothing; times an id it stays below 2^63.
std::vector<int64_t> draw_multipliers(int64_t layer, int64_t ngram, int64_t compressed_vocab) {
  const int64_t bound = std::numeric_limits<int64_t>::max() / compressed_vocab / 2;
  NumpyRandom random(static_cast<uint64_t>(10007 * layer));
  std::vector<int64_t> multipliers(static_cast<size_t>(ngram));
  for (int64_t& multiplier : multipliers) multiplier = random.integer_below(bound) * 2 + 1;
  return multipliers;
}

Status check_token_map(const Config& config, const std::vector<int32_t>& map) {
  if (static_cast<int64_t>(map.size()) != config.vocab_size) {
    return fail(ErrorCode::kEngramMap, "the Engram token map has {} ids, but vocab_size is {}",
                map.size(), config.vocab_size);
  }
  const auto [least, most] = std::minmax_element(map.begin(), map.end());
  if (*least < 0 || *most + int64_t{1} != config.engram_compressed_vocab_size) {
    return fail(ErrorCode::kEngramMap,
                "the Engram token map has ids from {} to {}, but engram_compressed_vocab_size is "
                "{}: it belongs to another tokenizer",
                *least, *most, config.engram_compressed_vocab_size);
  }
  return {};
}

}  // namespace

Result<EngramHash> EngramHash::build(const Config& config, std::vector<int32_t> token_map) {
  EngramHash hash;
  if (config.engram_layer_ids.empty()) return hash;
  CHECK_OK(check_token_map(config, token_map));

  hash.ngram_ = config.engram_max_ngram_size;
  hash.heads_ = config.engram_n_heads;
  hash.pad_ = token_map[static_cast<size_t>(config.engram_pad_token_id)];
  hash.token_map_ = std::move(token_map);
  // One search for all: no two columns of any table share a prime.
  int64_t prime = config.engram_vocab_size - 1;
  for (size_t table = 0; table < config.engram_layer_ids.size(); ++table) {
    std::vector<int64_t> primes, offsets;
    int64_t rows = 0;
    for (int64_t column = 0; column < config.engram_columns(); ++column) {
      prime = prime_above(prime);
      primes.push_back(prime);
      offsets.push_back(rows);
      rows += prime;
    }
    if (rows != config.engram_num_embeddings[table]) {
      return fail(ErrorCode::kConfig,
                  "config.json: engram_num_embeddings[{}] is {}, but the {} primes from "
                  "engram_vocab_size = {} sum to {}",
                  table, config.engram_num_embeddings[table], config.engram_columns(),
                  config.engram_vocab_size, rows);
    }
    hash.primes_.push_back(std::move(primes));
    hash.offsets_.push_back(std::move(offsets));
    hash.multipliers_.push_back(draw_multipliers(config.engram_layer_ids[table], hash.ngram_,
                                                 config.engram_compressed_vocab_size));
  }
  return hash;
}

void EngramHash::rows(int64_t engram, std::span<const int32_t> newest_first, int64_t* out) const {
  std::array<int64_t, kMaxEngramNgram> compressed;
  const size_t count = std::min(newest_first.size(), static_cast<size_t>(ngram_));
  for (size_t i = 0; i < count; ++i) {
    const int32_t id = newest_first[i];
    assert(id < static_cast<int64_t>(token_map_.size()));
    compressed[i] = id < 0 ? -1 : token_map_[static_cast<size_t>(id)];
  }
  rows_of_compressed(engram, {compressed.data(), count}, out);
}

void EngramHash::rows_of_compressed(int64_t engram, std::span<const int64_t> newest_first,
                                    int64_t* out) const {
  const auto& multipliers = multipliers_[static_cast<size_t>(engram)];
  const auto& primes = primes_[static_cast<size_t>(engram)];
  const auto& offsets = offsets_[static_cast<size_t>(engram)];
  bool blocked = false;
  int64_t hash = 0;
  size_t column = 0;
  for (size_t i = 0; i < static_cast<size_t>(ngram_); ++i) {
    blocked = blocked || i >= newest_first.size() || newest_first[i] < 0;
    hash ^= (blocked ? pad_ : newest_first[i]) * multipliers[i];
    if (i == 0) continue;  // the first row is the 2-gram's
    for (int64_t head = 0; head < heads_; ++head, ++column) {
      out[column] = offsets[column] + hash % primes[column];
    }
  }
}

}  // namespace tidemill
