// Hyper-connections: the worked Sinkhorn matrix, index order, then every backend against the
// reference.
#include "ops/hyper_connection/hyper_connection.h"

#include <gtest/gtest.h>

#include "ops/reference.h"
#include "ops/test_every_backend.h"

namespace tidemill {
namespace {

TEST(Sinkhorn, WorkedMatrix) {  // spec 12.5
  float c[16] = {0, 1, 2, 3, 3, 0, -1, 0.5f, -2, 2, 0, 1, 1, 1, 1, -4};
  const float expected[16] = {.016025f, .065420f, .311905f, .606650f, .782627f, .058521f,
                              .037762f, .121087f, .007127f, .584365f, .138714f, .269794f,
                              .194220f, .291693f, .511618f, .002468f};
  reference::sinkhorn(c, 4, 20, 1e-6f);
  for (int i = 0; i < 16; ++i) EXPECT_NEAR(c[i], expected[i], 1e-6f);
}

TEST(Expand, CombContractsItsFirstIndex) {
  OwnedRows h(1, 32);
  OwnedRows y(1, 16);
  OwnedRows post(1, 2);
  OwnedRows comb(1, 4);
  for (int d = 0; d < 16; ++d) {
    h.data[static_cast<size_t>(d)] = 1;
    h.data[static_cast<size_t>(16 + d)] = 10;
    y.data[static_cast<size_t>(d)] = 100;
  }
  post.data = {1, 2, 0, 0};
  comb.data = {3, 4, 5, 6};  // comb[0][1] = 4 carries stream 0 into stream 1
  reference_backend().expand({.h = h.view(),
                              .streams = 2,
                              .y = y.view(),
                              .post = {post.data.data(), 1, 2, 2},
                              .comb = {comb.data.data(), 1, 4, 4}});
  EXPECT_EQ(h.data[0], 100 + 3 * 1 + 5 * 10);
  EXPECT_EQ(h.data[16], 200 + 4 * 1 + 6 * 10);
}

struct Case {
  int64_t tokens, hidden, streams;
};
constexpr Case kCases[] = {{1, 384, 4},
                           {2, 384, 4},
                           {3, 256, 4},
                           {7, 128, 4},
                           {31, 64, 4},
                           {70, 384, 4},
                           {3, 32, 2},
                           {1, 24, 4},
                           {2, 5120, 4},
                           // two blocks of the cuda backend's mix, not filled
                           {37, 640, 4},
                           // odd rows
                           {9, 7, 4},
                           {300, 5, 2}};

TEST(HyperConnectionBackends, MixAgrees) {
  TestInputs in(1);
  for (const Case& c : kCases) {
    const int64_t n = (2 + c.streams) * c.streams;
    const OwnedMatrix fn = in.matrix(WeightFormat::kF32, n, c.streams * c.hidden);
    const std::vector<float> base = in.normals(n, 1);
    const std::vector<float> scale = {0.7f, -1.3f, 2.1f};
    HcWeights weights{fn.view, {base.data(), n}, {scale.data(), 3}};
    OwnedRows h = in.activations(c.tokens, c.streams * c.hidden, 2);
    const auto run = [&](Backend& backend) {
      OwnedRows pre(c.tokens, c.streams);
      OwnedRows post(c.tokens, c.streams);
      OwnedRows comb(c.tokens, c.streams * c.streams);
      backend.hc_mix({.weights = &weights,
                      .h = h.view(),
                      .streams = c.streams,
                      .sinkhorn_iterations = 20,
                      .norm_eps = 1e-20f,
                      .hc_eps = 1e-6f,
                      .pre = pre.view(),
                      .post = post.view(),
                      .comb = comb.view()});
      pre.data.insert(pre.data.end(), post.data.begin(), post.data.end());
      pre.data.insert(pre.data.end(), comb.data.begin(), comb.data.end());
      return pre.data;
    };
    const std::vector<float> expected = run(reference_backend());
    for_each_backend([&](Backend& backend, const std::string& label) {
      EXPECT_TRUE(same_bits(run(backend), expected)) << label << ", hidden " << c.hidden;
    });
  }
}

TEST(HyperConnectionBackends, CollapseAndExpandAgree) {
  TestInputs in(2);
  for (const Case& c : kCases) {
    OwnedRows h = in.activations(c.tokens, c.streams * c.hidden, 2);
    OwnedRows y = in.activations(c.tokens, c.hidden);
    OwnedRows gates = in.activations(c.tokens, c.streams);
    OwnedRows comb = in.activations(c.tokens, c.streams * c.streams);
    for (float& value : gates.data) value += 1.2345678f;  // true float32 factors
    for (float& value : comb.data) value *= 0.7654321f;
    const std::vector<uint16_t> norm = in.bf16_normals(c.hidden, 1, 0.2f);
    const auto run = [&](Backend& backend) {
      OwnedRows streams = h;
      OwnedRows collapsed(c.tokens, c.hidden);
      OwnedRows x(c.tokens, c.hidden);
      OwnedRows x_only(c.tokens, c.hidden);
      CollapseNormArgs args{.h = streams.view(),
                            .streams = c.streams,
                            .pre = gates.view(),
                            .norm = {norm.data(), c.hidden},
                            .eps = 1e-20f,
                            .collapsed = collapsed.view(),
                            .x = x.view()};
      backend.collapse_norm(args);
      args.collapsed = {};
      args.x = x_only.view();
      backend.collapse_norm(args);
      backend.expand({.h = streams.view(),
                      .streams = c.streams,
                      .y = y.view(),
                      .post = gates.view(),
                      .comb = comb.view()});
      OwnedRows mean(c.tokens, c.hidden);
      backend.stream_mean({.h = streams.view(), .streams = c.streams, .out = mean.view()});
      std::vector<float> all = streams.data;
      for (const auto* part : {&collapsed, &x, &x_only, &mean}) {
        all.insert(all.end(), part->data.begin(), part->data.end());
      }
      return all;
    };
    const std::vector<float> expected = run(reference_backend());
    for_each_backend([&](Backend& backend, const std::string& label) {
      EXPECT_TRUE(same_bits(run(backend), expected)) << label << ", hidden " << c.hidden;
    });
  }
}

}  // namespace
}  // namespace tidemill
