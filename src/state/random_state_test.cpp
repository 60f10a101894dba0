#include "state/random_state.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "base/formats.h"
#include "state/test_state.h"

namespace tidemill {
namespace {

Config small() {
  Config c;
  c.num_hidden_layers = 3;
  c.head_dim = 64;
  c.index_head_dim = 32;
  c.sliding_window = 32;
  c.dspark_block_size = 5;
  c.num_nextn_predict_layers = 1;
  return c;
}

std::string text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

float q8_value(const std::byte* row, const RowFormat& format, int64_t i) {
  const auto byte = [&](int64_t at) { return static_cast<uint8_t>(row[at]); };
  return e4m3_to_float(byte(i)) * e8m0_to_float(byte(format.width + i / 32));
}

TEST(RandomState, EveryRowIsValidAndTheRowsOfAContextDiffer) {
  ThreadTeam team(1);
  ReferenceBackend backend(team, Rounding{});
  Topology topology;
  topology.layers.resize(3);
  topology.kv_sources = {{1, 2}, {2, 1}};
  topology.decoder_begin = 2;
  const StateLayout layout = *StateLayout::build(small(), topology, backend);
  StatePool pool = *StatePool::create(backend, layout, 3, 10);
  fill_with_random_rows(pool, 4 * kBlockTokens);

  std::set<std::string> blocks;
  for (int32_t i = 0; i < 10; ++i) blocks.insert(text(pool.block(i)));
  EXPECT_EQ(blocks.size(), 4u);
  EXPECT_EQ(text(pool.block(1)), text(pool.block(9)));
  EXPECT_EQ(text(pool.slot(0)), text(pool.slot(2)));

  double squares = 0;
  int64_t count = 0;
  for (const int64_t ring : layout.ring_offset) {
    for (int64_t r = 0; r < layout.ring_rows; ++r) {
      const std::byte* row = pool.slot(2).data() + ring + r * layout.window.bytes();
      for (int64_t k = 0; k < layout.window.width; ++k, ++count) {
        const float value = q8_value(row, layout.window, k);
        ASSERT_TRUE(std::isfinite(value));
        squares += value * value;
      }
    }
  }
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(count)), 1.0, 0.5);
  const StateLayout::Source& source = layout.sources[1];
  const std::byte* entry = pool.block(3).data() + source.entry_offset + layout.entry.bytes();
  const std::byte* key = pool.block(3).data() + source.key_offset + layout.key.bytes();
  EXPECT_EQ(e4m3_to_float(static_cast<uint8_t>(entry[layout.entry.width / 2])), 0.25f);
  EXPECT_EQ(e8m0_to_float(static_cast<uint8_t>(key[layout.key.width / 2])), 0.25f);
}

}  // namespace
}  // namespace tidemill
