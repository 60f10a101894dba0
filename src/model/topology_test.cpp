#include "model/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/test_checkpoint.h"

namespace tidemill {
namespace {

using testing::Each;
using testing::Field;
using testing::HasSubstr;

Config released() {
  return *Config::parse(read_file(TIDEMILL_SOURCE_DIR "/tests/cases/config/released.json"));
}

// Layer ids for which `is` holds.
template <typename Predicate>
std::vector<int64_t> layers_that(const Topology& topology, Predicate is) {
  std::vector<int64_t> ids;
  for (size_t i = 0; i < topology.layers.size(); ++i) {
    if (is(topology.layers[i])) ids.push_back(static_cast<int64_t>(i));
  }
  return ids;
}
using Ids = std::vector<int64_t>;

TEST(Topology, ReleasedModel) {
  const Config config = released();
  const auto topology = Topology::build(config);
  ASSERT_TRUE(topology) << topology.error().message;
  const auto& t = *topology;
  ASSERT_EQ(t.layers.size(), 40u);
  ASSERT_EQ(t.kv_sources.size(), 4u);
  EXPECT_EQ(t.kv_sources[2].layer, 14);
  EXPECT_EQ(t.kv_sources[2].ratio, 2);
  EXPECT_EQ(t.kv_sources[3].layer, 20);
  EXPECT_EQ(t.kv_sources[3].ratio, 1);
  EXPECT_EQ(t.decoder_begin, 20);

  for (int64_t i = 0; i < 40; ++i) {
    const int64_t source = i < 2 ? -1 : i < 8 ? 0 : i < 14 ? 1 : i < 20 ? 2 : 3;
    EXPECT_EQ(t.layers[i].kv_source, source) << i;
    EXPECT_EQ(t.layers[i].ratio, i < 2 ? 0 : i < 20 ? 2 : 1) << i;
    EXPECT_EQ(t.layers[i].decoder, i >= 20) << i;
    EXPECT_EQ(t.layers[i].engram, i == 1 ? 0 : i == 14 ? 1 : -1) << i;
    EXPECT_EQ(t.layers[i].tap, i >= 37 ? i - 37 : -1) << i;
  }
  EXPECT_EQ(layers_that(t, [](auto& r) { return r.owns_kv; }), (Ids{2, 8, 14, 20}));
  EXPECT_EQ(layers_that(t, [](auto& r) { return r.owns_index; }),
            (Ids{2, 8, 14, 20, 24, 28, 32, 36}));
  EXPECT_EQ(layers_that(t, [](auto& r) { return r.builds_pool; }), (Ids{20}));
  EXPECT_EQ(layers_that(t, [](auto& r) { return r.reads_pool; }), (Ids{24, 28, 32, 36}));
}

// A pool in the middle: an index source on a later cache does not read it.
TEST(Topology, PoolEndsWithItsCache) {
  Config config = released();
  config.candidate_source_layer_id = 8;
  config.index_source_layer_ids = {2, 8, 10, 14, 20};
  const auto topology = Topology::build(config);
  ASSERT_TRUE(topology) << topology.error().message;
  EXPECT_EQ(layers_that(*topology, [](auto& r) { return r.reads_pool; }), (Ids{10}));
}

TEST(Topology, WithoutPool) {
  Config config = released();
  config.candidate_source_layer_id = -1;
  const auto topology = Topology::build(config);
  ASSERT_TRUE(topology) << topology.error().message;
  EXPECT_THAT(topology->layers, Each(Field(&LayerRole::reads_pool, false)));
  EXPECT_THAT(topology->layers, Each(Field(&LayerRole::builds_pool, false)));
}

// A window-only layer behind the last owner needs its whole input: replay is not available.
TEST(Topology, NoDecoderWhenALaterLayerDoesNotReadTheLastCache) {
  Config config = released();
  config.compress_ratios[30] = 0;
  const auto topology = Topology::build(config);
  ASSERT_TRUE(topology) << topology.error().message;
  EXPECT_EQ(topology->decoder_begin, 40);
  EXPECT_THAT(topology->layers, Each(Field(&LayerRole::decoder, false)));
}

TEST(Topology, WindowsOnly) {
  Config config;
  config.num_hidden_layers = 3;
  config.compress_ratios = {0, 0, 0};
  const auto topology = Topology::build(config);
  ASSERT_TRUE(topology) << topology.error().message;
  EXPECT_TRUE(topology->kv_sources.empty());
  EXPECT_EQ(topology->decoder_begin, 3);
}

// Configurations built by a program rather than parsed: still no read past an end.
TEST(Topology, RefusesHandMadeConfigs) {
  Config config = released();
  config.compress_ratios.resize(10);
  EXPECT_FALSE(Topology::build(config));
  config = released();
  config.compress_ratios[4] = 3;
  const auto topology = Topology::build(config);
  ASSERT_FALSE(topology);
  EXPECT_THAT(topology.error().message, HasSubstr("compress_ratios[4] is 3; expected 0, 1 or 2"));
}

}  // namespace
}  // namespace tidemill
