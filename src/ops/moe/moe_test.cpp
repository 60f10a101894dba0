// Router and experts: worked values, ties, then every backend against the reference.
#include "ops/moe/moe.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/reference.h"
#include "ops/test_every_backend.h"

namespace tidemill {
namespace {

reference::Context context() {
  static ThreadTeam team(1);
  return {team, Rounding{}};
}

TEST(Swiglu, WorkedValues) {
  EXPECT_FLOAT_EQ(reference::sqrt_softplus(0), 0.8325546f);
  // 12 and -11 are clamped to 10 and -10: silu(10) = 9.9995460, product -99.995460 -> bf16 -100
  EXPECT_EQ(reference::swiglu(context(), 12, -11, 10, 1), -100.0f);
  const reference::Context exact{context().team, *Rounding::parse("none")};
  EXPECT_NEAR(reference::swiglu(exact, 12, -11, 10, 1), -99.995460f, 1e-5f);
  EXPECT_NEAR(reference::swiglu(exact, -30, 1, 10, 1), 0.0f, 1e-10f);  // no lower clamp
  EXPECT_FLOAT_EQ(reference::swiglu(exact, 1, 2, 10, 0.25f), 0.25f * 1.4621172f);
}

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed route(Backend& backend, const OwnedMatrix& gate, OwnedRows& x,
             const std::vector<float>& bias, int64_t topk, const std::vector<float>& bias_vl = {},
             const std::vector<uint8_t>& image = {}) {
  Routed r;
  r.ids.resize(static_cast<size_t>(x.count * topk));
  r.weights.resize(r.ids.size());
  RouteArgs args;
  args.x = x.view();
  args.gate = &gate.view;
  args.bias = {bias.data(), gate.view.rows};
  if (!bias_vl.empty()) args.bias_vl = {bias_vl.data(), gate.view.rows};
  if (!image.empty()) args.image = image.data();
  args.topk = topk;
  args.scale = 1.5f;
  args.ids = r.ids.data();
  args.weights = r.weights.data();
  backend.route(args);
  return r;
}

TEST(Route, EqualScoresGoToTheLowerId) {
  TestInputs in(1);
  OwnedMatrix gate = in.matrix(WeightFormat::kBf16, 6, 32);
  std::fill(gate.data.begin(), gate.data.end(), uint8_t{0});  // every score sqrt(ln 2)
  OwnedRows x = in.activations(1, 32);
  const Routed r = route(reference_backend(), gate, x, {0, 0.5f, 0, 0.5f, 0, 0}, 3);
  EXPECT_EQ(r.ids, (std::vector<int32_t>{1, 3, 0}));  // best first; the bias only selects
  for (const float w : r.weights) EXPECT_FLOAT_EQ(w, 0.5f);
}

TEST(Route, ImageTokensHaveTheirOwnBias) {
  TestInputs in(2);
  const OwnedMatrix gate = in.matrix(WeightFormat::kBf16, 6, 32);
  OwnedRows x = in.activations(2, 32);
  const std::vector<float> text = {100, 0, 0, 0, 0, 0};
  const std::vector<float> image = {0, 0, 0, 0, 0, 100};
  const Routed r = route(reference_backend(), gate, x, text, 1, image, {0, 1});
  EXPECT_EQ(r.ids, (std::vector<int32_t>{0, 5}));
}

// Bit for bit where the same functions are called. An error of one or two units in the last place
// of exp, log1p and their sum halves in the root and comes twice into a weight: below 8 units.
void expect_same_weights(const Backend& backend, const std::vector<float>& got,
                         const std::vector<float>& expected, const std::string& label) {
  if (calls_host_functions(backend)) {
    EXPECT_TRUE(same_bits(got, expected)) << label;
    return;
  }
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i], expected[i], 8 * 0x1p-23f * expected[i]) << label << ", weight " << i;
  }
}

TEST(RouteBackends, Agree) {
  TestInputs in(3);
  for (const int64_t tokens : {1, 2, 7, 70}) {
    struct Shape {
      int64_t experts, hidden, topk;
    };
    for (const Shape& s : {Shape{24, 384, 4},
                           {16, 256, 6},
                           {12, 128, 3},
                           {384, 5120, 6},
                           {4, 24, 4},
                           {500, 64, 40}}) {
      if (tokens > 7 && s.hidden > 384) continue;
      const OwnedMatrix gate = in.matrix(WeightFormat::kBf16, s.experts, s.hidden);
      OwnedRows x = in.activations(tokens, s.hidden);
      const std::vector<float> bias = in.normals(s.experts, 0.2f);
      Expected expected([&](Backend& b) { return route(b, gate, x, bias, s.topk); });
      for_each_backend([&](Backend& backend, const std::string& label) {
        const Routed r = route(backend, gate, x, bias, s.topk);
        EXPECT_EQ(r.ids, expected[backend].ids) << label;
        expect_same_weights(backend, r.weights, expected[backend].weights, label);
      });
    }
  }
}

TEST(RouteBackends, AgreeOnTies) {
  TestInputs in(7);
  OwnedMatrix gate = in.matrix(WeightFormat::kBf16, 24, 32);
  std::memset(gate.data.data() + 1, 0, gate.data.size() - 1);
  OwnedRows x = in.activations(3, 32);
  std::vector<float> bias(24);
  for (float& b : bias) b = static_cast<float>(in.below(3));
  const Routed expected = route(reference_backend(), gate, x, bias, 6);
  for_each_backend([&](Backend& backend, const std::string& label) {
    EXPECT_EQ(route(backend, gate, x, bias, 6).ids, expected.ids) << label;
  });
}

// Experts of a layer with a call's routing.
struct Layer {
  std::vector<OwnedMatrix> matrices;
  std::vector<ExpertWeights> experts;  // the shared one last
  std::vector<int32_t> ids;
  std::vector<float> weights;
  int64_t topk = 0;

  Layer(TestInputs& in, int64_t count, int64_t hidden, int64_t inter, int64_t chosen,
        int64_t tokens, const std::vector<uint8_t>& scales)
      : topk(chosen) {
    for (int64_t e = 0; e <= count; ++e) {
      const WeightFormat format = e < count ? WeightFormat::kFp4Row : WeightFormat::kFp8Block;
      matrices.push_back(in.matrix(format, inter, hidden, scales));
      matrices.push_back(in.matrix(format, inter, hidden, scales));
      matrices.push_back(in.matrix(format, hidden, inter, scales));
    }
    for (size_t i = 0; i < matrices.size(); i += 3) {
      experts.push_back({matrices[i].view, matrices[i + 1].view, matrices[i + 2].view});
    }
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t first = in.below(count);
      for (int64_t i = 0; i < topk; ++i) {  // distinct, in no order
        ids.push_back(static_cast<int32_t>((first + i * (count - 1)) % count));
        weights.push_back(in.uniform(0.05f, 0.9f));
      }
    }
  }

  std::vector<float> run(Backend& backend, OwnedRows& x, int64_t begin, int64_t tokens) {
    OwnedRows y(tokens, x.width);
    ExpertsArgs args;
    args.x = {x.view().f32(begin), tokens, x.width, x.stride};
    args.experts = std::span(experts).first(experts.size() - 1);
    args.shared = &experts.back();
    args.ids = ids.data() + begin * topk;
    args.weights = weights.data() + begin * topk;
    args.topk = topk;
    args.y = y.view();
    backend.experts(args);
    return y.data;
  }
};

TEST(ExpertsBackends, Agree) {
  TestInputs in(4);
  struct Shape {
    int64_t experts, hidden, inter, topk;
  };
  for (const Shape& s : {Shape{24, 384, 128, 4},
                         {16, 256, 128, 6},
                         {12, 128, 64, 3},
                         {5, 32, 32, 2},
                         {3, 96, 160, 3},
                         {4, 1024, 288, 2}}) {
    for (const int64_t tokens : {1, 2, 3, 5, 8, 17, 150}) {
      if (tokens > 17 && s.hidden != 128) continue;
      Layer layer(in, s.experts, s.hidden, s.inter, s.topk, tokens, {118, 119, 120});
      OwnedRows x = in.activations(tokens, s.hidden);
      Expected expected([&](Backend& b) { return layer.run(b, x, 0, tokens); });
      for_each_backend([&](Backend& backend, const std::string& label) {
        EXPECT_TRUE(same_bits(layer.run(backend, x, 0, tokens), expected[backend]))
            << label << ", " << tokens << " tokens, hidden " << s.hidden;
      });
    }
  }
}

TEST(ExpertsBackends, AgreeOnExtremeScalesAndActivations) {
  TestInputs in(5);
  for (const std::vector<uint8_t>& scales :
       std::vector<std::vector<uint8_t>>{{0, 3}, {119, 254}, {119, 255}, {60, 200}}) {
    for (const float deviation : {1e-20f, 1.0f, 1e30f}) {
      Layer layer(in, 5, 64, 64, 2, 3, scales);
      OwnedRows x = in.activations(3, 64, deviation);
      Expected expected([&](Backend& b) { return layer.run(b, x, 0, 3); });
      for_each_backend([&](Backend& backend, const std::string& label) {
        EXPECT_TRUE(same_bits(layer.run(backend, x, 0, 3), expected[backend])) << label;
      });
    }
  }
}

// Many tokens of one expert: several blocks of tokens, widths of several blocks of columns, units
// of several blocks of channels.
TEST(ExpertsBackends, AgreeOnManyTokensOfAnExpert) {
  TestInputs in(8);
  struct Shape {
    int64_t experts, hidden, inter, topk, tokens;
  };
  for (const Shape& s : {Shape{2, 1312, 96, 2, 140}, {3, 128, 256, 2, 300}}) {
    Layer layer(in, s.experts, s.hidden, s.inter, s.topk, s.tokens, {118, 119, 120});
    OwnedRows x = in.activations(s.tokens, s.hidden);
    Expected expected([&](Backend& b) { return layer.run(b, x, 0, s.tokens); });
    for_each_backend([&](Backend& backend, const std::string& label) {
      EXPECT_TRUE(same_bits(layer.run(backend, x, 0, s.tokens), expected[backend])) << label;
    });
  }
}

TEST(ExpertsBackends, ARowDoesNotDependOnItsBatch) {
  TestInputs in(6);
  Layer layer(in, 24, 384, 128, 4, 7, {118, 119, 120});
  OwnedRows x = in.activations(7, 384);
  for_each_backend([&](Backend& backend, const std::string& label) {
    const std::vector<float> batch = layer.run(backend, x, 0, 7);
    for (int64_t t = 0; t < 7; ++t) {
      const std::vector<float> one = layer.run(backend, x, t, 1);
      EXPECT_TRUE(std::equal(one.begin(), one.begin() + 384, batch.begin() + t * 400)) << label;
    }
  });
}

}  // namespace
}  // namespace tidemill
