#include "model/weight_pager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace tidemill {
namespace {

using testing::HasSubstr;

const Model& micro() {
  static const std::unique_ptr<Model> model =
      std::move(*Model::load(TIDEMILL_SOURCE_DIR "/tests/vectors/micro"));
  return *model;
}

// Room for so many experts.
std::unique_ptr<WeightPager> pager_of(int64_t slots) {
  const WeightResidency r = WeightResidency::of(micro());
  auto pager = WeightPager::create(micro(), r.always + slots * r.slot_bytes(), 2);
  EXPECT_TRUE(pager) << pager.error().message;
  EXPECT_EQ((*pager)->slots(), slots);
  return std::move(*pager);
}

// The bytes that a kernel would read, equal to those of the mapping?
void expect_same(const Matrix& a, const Matrix& b) {
  ASSERT_EQ(a.rows * a.row_bytes(), b.rows * b.row_bytes());
  EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<size_t>(a.rows * a.row_bytes())), 0);
  EXPECT_EQ(std::memcmp(a.scales, b.scales, static_cast<size_t>(a.rows * a.scale_columns())), 0);
}

void acquire_and_check(WeightPager& pager, int64_t layer, const std::vector<int32_t>& ids) {
  const auto experts = pager.acquire(layer, ids);
  const auto& mapped = micro().weights().layers[static_cast<size_t>(layer)].moe.experts;
  ASSERT_EQ(experts.size(), mapped.size());
  for (const int32_t id : ids) {
    expect_same(experts[static_cast<size_t>(id)].w1, mapped[static_cast<size_t>(id)].w1);
    expect_same(experts[static_cast<size_t>(id)].w3, mapped[static_cast<size_t>(id)].w3);
    expect_same(experts[static_cast<size_t>(id)].w2, mapped[static_cast<size_t>(id)].w2);
  }
}

TEST(WeightPager, KeepsWhatIsWantedMost) {
  const auto pager = pager_of(6);
  const auto& mapped = micro().weights().layers[0].moe.experts;
  for (int round = 0; round < 10; ++round) acquire_and_check(*pager, 0, {0, 1, 1, 0});
  EXPECT_EQ(pager->counters().misses, 2);
  EXPECT_EQ(pager->counters().hits, 18);
  EXPECT_NE(pager->acquire(0, std::vector<int32_t>{0})[0].w1.data, mapped[0].w1.data);
  // Experts that are used once pass by those two.
  for (int32_t id = 2; id < static_cast<int32_t>(mapped.size()); ++id) {
    acquire_and_check(*pager, 0, {id});
  }
  const int64_t misses = pager->counters().misses;
  acquire_and_check(*pager, 0, {0, 1});
  EXPECT_EQ(pager->counters().misses, misses);
}

// Hotter ones have to go before an expert that the same call needs.
TEST(WeightPager, ExpertsOfACallDoNotDisplaceEachOther) {
  const auto pager = pager_of(6);
  const auto& mapped = micro().weights().layers[0].moe.experts;
  for (int round = 0; round < 10; ++round) acquire_and_check(*pager, 0, {0, 1, 2});
  acquire_and_check(*pager, 0, {3, 4, 5});
  const auto experts = pager->acquire(0, std::vector<int32_t>{3, 4, 5, 6});
  for (const size_t id : {3, 4, 5, 6}) EXPECT_NE(experts[id].w1.data, mapped[id].w1.data) << id;
}

TEST(WeightPager, WhatHasNoRoomIsUsedFromTheMapping) {
  const auto pager = pager_of(6);
  acquire_and_check(*pager, 0, {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(pager->counters().misses, 6);
  EXPECT_EQ(pager->counters().mapped, 2);
  acquire_and_check(*pager, 1, {5, 4, 3});
}

// Experts that were hot and had to make room are read again before their layer's turn. Whether that
// is done in time is the machine's matter, so there are many tries.
TEST(WeightPager, TheNextLayersExpertsAreReadAhead) {
  const auto pager = pager_of(6);
  for (int round = 0; round < 10; ++round) acquire_and_check(*pager, 1, {3, 4, 5});
  for (int attempt = 0; attempt < 100 && pager->counters().predicted == 0; ++attempt) {
    acquire_and_check(*pager, 2, {0, 1, 2, 6, 7, 8});
    acquire_and_check(*pager, 0, {9});
    std::this_thread::sleep_for(std::chrono::milliseconds(attempt));
    acquire_and_check(*pager, 1, {3, 4, 5});
  }
  EXPECT_GT(pager->counters().predicted, 0);
}

TEST(WeightPager, AnyOrderGivesTheSameWeights) {
  std::mt19937 random(5);
  const auto layers = static_cast<int64_t>(micro().weights().layers.size());
  const auto engram = static_cast<size_t>(micro().config().engram_layer_ids[0]);
  const auto experts = static_cast<int32_t>(micro().weights().layers[0].moe.experts.size());
  for (const int64_t slots : {6, 7, 9, 30}) {
    const auto pager = pager_of(slots);
    for (int step = 0; step < 60; ++step) {
      for (int64_t layer = 0; layer < layers; ++layer) {
        std::vector<int32_t> ids(1 + random() % 8);
        for (int32_t& id : ids) id = static_cast<int32_t>(random() % experts);
        acquire_and_check(*pager, layer, ids);
      }
      std::vector<int64_t> rows = {0, 7, -1, static_cast<int64_t>(random() % 50)};
      pager->prefetch_rows(micro().weights().layers[engram].engram.table, rows);
    }
  }
}

TEST(WeightPager, TooLittleMemorySaysHowMuchIsNeeded) {
  const WeightResidency r = WeightResidency::of(micro());
  EXPECT_TRUE(WeightPager::create(micro(), r.least_bytes()));
  const auto pager = WeightPager::create(micro(), r.least_bytes() - 1);
  ASSERT_FALSE(pager);
  EXPECT_EQ(pager.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(pager.error().message, HasSubstr("give at least"));
  EXPECT_FALSE(r.fits(r.always));
  EXPECT_TRUE(r.fits(micro().checkpoint().file_bytes()));
}

}  // namespace
}  // namespace tidemill
