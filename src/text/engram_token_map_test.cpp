#include "text/engram_token_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include <nlohmann/json.hpp>

#include "base/mapped_file.h"
#include "text/tokenizer_for_tests.h"

namespace tidemill {
namespace {

// FNV-1a, 64 bits, over little-endian int32.
uint64_t fingerprint(std::span<const int32_t> values) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const int32_t value : values) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ (static_cast<uint32_t>(value) >> shift & 0xFF)) * 0x100000001B3u;
    }
  }
  return hash;
}

TEST(EngramTokenMap, OfDeepSeek) {
  const Tokenizer* tokenizer = deepseek_tokenizer();
  const EngramTokenMap map = engram_token_map(*tokenizer);
  ASSERT_EQ(map.ids.size(), 129280u);
  EXPECT_EQ(map.distinct, 99092);
  const std::pair<int32_t, int32_t> samples[] = {{0, 0},          {1, 1},          {2, 2},
                                                 {3, 3},          {42, 42},        {1000, 604},
                                                 {128799, 98611}, {129264, 99076}, {129279, 99091}};
  for (const auto& [id, expected] : samples) EXPECT_EQ(map.ids[id], expected) << id;
  // Of the map whose SHA-256 is c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481.
  EXPECT_EQ(fingerprint(map.ids), 0x6B5CFA68A5F57BA6u);
}

TEST(EngramTokenMap, OfMini) {
  const Tokenizer* tokenizer = mini_tokenizer();
  const EngramTokenMap map = engram_token_map(*tokenizer);
  EXPECT_EQ(map.distinct, 6563);
  const auto file = MappedFile::open(TIDEMILL_SOURCE_DIR "/models/mini/engram_token_map.i32");
  ASSERT_TRUE(file) << file.error().message;
  ASSERT_EQ(file->bytes().size(), map.ids.size() * sizeof(int32_t));
  EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(map.ids)), file->bytes()));
}

TEST(EngramTokenMap, OfMicro) {
  const Tokenizer* tokenizer = micro_tokenizer();
  std::ifstream file(TIDEMILL_SOURCE_DIR "/tests/vectors/micro/token_map.json");
  const auto expected = nlohmann::json::parse(file);
  const EngramTokenMap map = engram_token_map(*tokenizer);
  EXPECT_EQ(map.distinct, expected.at("compressed_vocab_size"));
  EXPECT_EQ(map.ids, expected.at("token_map").get<std::vector<int32_t>>());
}

}  // namespace
}  // namespace tidemill
