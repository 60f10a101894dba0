#include "text/bpe.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace tidemill {
namespace {

using Merge = BytePairEncoder::Merge;

std::array<int32_t, 256> identity_bytes() {
  std::array<int32_t, 256> ids{};
  for (int i = 0; i < 256; ++i) ids[i] = i;
  return ids;
}

std::vector<int32_t> encode(const std::vector<Merge>& merges, std::string_view piece) {
  const auto encoder = BytePairEncoder::build(identity_bytes(), merges);
  EXPECT_TRUE(encoder);
  BytePairEncoder::Scratch scratch;
  std::vector<int32_t> ids;
  encoder->encode(piece, scratch, ids);
  return ids;
}

// The definition, word for word.
std::vector<int32_t> encode_by_definition(const std::vector<Merge>& merges,
                                          std::string_view piece) {
  std::vector<int32_t> ids;
  for (const char c : piece) ids.push_back(static_cast<uint8_t>(c));
  while (true) {
    size_t best_rank = merges.size();
    size_t best_position = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (merges[rank].left == ids[i] && merges[rank].right == ids[i + 1]) {
          best_rank = rank;
          best_position = i;
        }
      }
    }
    if (best_rank == merges.size()) return ids;
    ids[best_position] = merges[best_rank].result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_position) + 1);
  }
}

TEST(BytePairEncoder, EmptyAndSingle) {
  EXPECT_EQ(encode({}, ""), std::vector<int32_t>());
  EXPECT_EQ(encode({}, "\xff"), std::vector<int32_t>({255}));
}

TEST(BytePairEncoder, LowestRankFirst) {
  // "bc" before "ab": a bc, although "ab" is further left.
  EXPECT_EQ(encode({{'b', 'c', 300}, {'a', 'b', 301}}, "abc"), std::vector<int32_t>({'a', 300}));
  EXPECT_EQ(encode({{'a', 'b', 301}, {'b', 'c', 300}}, "abc"), std::vector<int32_t>({301, 'c'}));
}

TEST(BytePairEncoder, LeftmostAmongEquals) {
  EXPECT_EQ(encode({{'a', 'a', 300}}, "aaa"), std::vector<int32_t>({300, 'a'}));
  EXPECT_EQ(encode({{'a', 'a', 300}, {300, 'a', 301}}, "aaaaa"), std::vector<int32_t>({300, 301}));
}

TEST(BytePairEncoder, EqualsItsDefinition) {
  std::mt19937 random(1);
  const auto below = [&](size_t n) { return static_cast<int32_t>(random() % n); };
  for (int round = 0; round < 300; ++round) {
    // A random grammar over three letters, where each merge may build on the results of earlier
    // ones and two merges may lead to the same token.
    std::vector<int32_t> known = {'a', 'b', 'c'};
    std::vector<Merge> merges;
    while (merges.size() < 25) {
      const Merge merge{known[below(known.size())], known[below(known.size())],
                        below(8) == 0 ? known.back() : 300 + static_cast<int32_t>(known.size())};
      const bool repeated = std::any_of(merges.begin(), merges.end(), [&](const Merge& m) {
        return m.left == merge.left && m.right == merge.right;
      });
      if (repeated) continue;
      merges.push_back(merge);
      known.push_back(merge.result);
    }
    std::string piece;
    for (int32_t size = below(60); size > 0; --size) piece += static_cast<char>('a' + below(3));
    ASSERT_EQ(encode(merges, piece), encode_by_definition(merges, piece)) << piece;
  }
}

TEST(BytePairEncoder, ScratchKeepsNothing) {
  const auto encoder = BytePairEncoder::build(identity_bytes(), {{'a', 'b', 300}});
  ASSERT_TRUE(encoder);
  BytePairEncoder::Scratch scratch;
  std::vector<int32_t> ids;
  for (const char* piece : {"abab", "a", "", "ab"}) encoder->encode(piece, scratch, ids);
  EXPECT_EQ(ids, std::vector<int32_t>({300, 300, 'a', 300}));
}

TEST(BytePairEncoder, RefusesARepeatedPair) {
  const auto encoder =
      BytePairEncoder::build(identity_bytes(), {{1, 2, 300}, {3, 4, 301}, {1, 2, 302}});
  ASSERT_FALSE(encoder);
  EXPECT_EQ(encoder.error().code, ErrorCode::kTokenizer);
  EXPECT_EQ(encoder.error().message, "merges 0 and 2 are the same pair of tokens");
}

}  // namespace
}  // namespace tidemill
