#include "ops/placed_weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "ops/reference_backend.h"

namespace tidemill {
namespace {

// Memory of the host, of which every byte that comes from elsewhere is counted.
class Counting : public ReferenceBackend {
 public:
  Counting(ThreadTeam& team, const std::vector<uint16_t>& host)
      : ReferenceBackend(team, {}), begin_(host.data()), end_(host.data() + host.size()) {}
  void copy(void* to, const void* from, int64_t bytes) override {
    if (from >= begin_ && from < end_) from_host_ += bytes;
    ReferenceBackend::copy(to, from, bytes);
  }
  int64_t from_host() const { return from_host_; }

 private:
  const void* begin_;
  const void* end_;
  int64_t from_host_ = 0;
};

ModelWeights vectors_in(const std::vector<uint16_t>& host) {
  ModelWeights weights;
  weights.norm = {host.data(), 700};
  weights.layers.resize(1);
  weights.layers[0].attn_norm = {host.data() + 600, 400};  // hangs together with the one before
  weights.layers[0].ffn_norm = {host.data() + 1000, 24};
  return weights;
}

void expect_same(const Bf16Vector& placed, const Bf16Vector& given) {
  ASSERT_EQ(placed.size, given.size);
  ASSERT_NE(placed.data, given.data);
  EXPECT_EQ(std::memcmp(placed.data, given.data, static_cast<size_t>(given.size) * 2), 0);
}

TEST(PlacedWeights, WhatRepeatsItselfIsSentOnce) {
  constexpr int64_t kPeriod = 128;  // bytes
  std::vector<uint16_t> host(1024);
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<uint16_t>(1000 + i % 64);
  const ModelWeights given = vectors_in(host);
  ThreadTeam team(1);
  for (const int64_t period : {int64_t{0}, kPeriod}) {
    Counting backend(team, host);
    const auto placed = PlacedWeights::create(given, backend, period);
    ASSERT_TRUE(placed) << placed.error().message;
    expect_same(placed->weights().norm, given.norm);
    expect_same(placed->weights().layers[0].attn_norm, given.layers[0].attn_norm);
    expect_same(placed->weights().layers[0].ffn_norm, given.layers[0].ffn_norm);
    EXPECT_EQ(placed->weights().layers[0].attn_norm.data - placed->weights().norm.data, 600);
    EXPECT_EQ(backend.from_host(), period == 0 ? 2048 : kPeriod + 48);
    EXPECT_EQ(placed->bytes(), PlacedWeights::size_of(given));
  }
}

}  // namespace
}  // namespace tidemill
