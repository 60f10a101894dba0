// Engram gate.
#include "ops/engram/engram.h"

#include <gtest/gtest.h>

#include "ops/test_every_backend.h"

namespace tidemill {
namespace {

TEST(EngramBackends, Agree) {
  TestInputs in(1);
  struct Shape {
    int64_t tokens, hidden, streams;
  };
  for (const Shape& s : {Shape{1, 384, 4},
                         {3, 256, 4},
                         {2, 128, 4},
                         {7, 32, 2},
                         {70, 384, 4},
                         {1, 24, 4},
                         {2, 5120, 4},
                         {9, 5120, 4},
                         {5, 7, 3}}) {
    const OwnedMatrix q = in.matrix(WeightFormat::kBf16, s.streams, s.hidden);
    const OwnedMatrix k = in.matrix(WeightFormat::kBf16, s.streams, s.hidden);
    OwnedRows h = in.activations(s.tokens, s.streams * s.hidden, 3);
    OwnedRows kvv = in.activations(s.tokens, (s.streams + 1) * s.hidden);
    std::vector<uint8_t> image;
    for (int64_t t = 0; t < s.tokens; ++t) image.push_back(t % 3 == 1);
    for (const bool with_images : {false, true}) {
      const auto run = [&](Backend& backend) {
        OwnedRows streams = h;
        OwnedRows gate(s.tokens, s.streams);
        EngramGateArgs args;
        args.h = streams.view();
        args.streams = s.streams;
        args.kvv = kvv.view();
        args.q_weight = &q.view;
        args.k_weight = &k.view;
        args.eps = 1e-20f;
        args.image = with_images ? image.data() : nullptr;
        args.gate = gate.view();
        backend.engram_gate(args);
        streams.data.insert(streams.data.end(), gate.data.begin(), gate.data.end());
        return streams.data;
      };
      const std::vector<float> expected = run(reference_backend());
      for_each_backend([&](Backend& backend, const std::string& label) {
        EXPECT_TRUE(same_bits(run(backend), expected)) << label << ", hidden " << s.hidden;
      });
    }
  }
}

TEST(Engram, AnImageTokenKeepsItsStreams) {
  TestInputs in(2);
  const OwnedMatrix q = in.matrix(WeightFormat::kBf16, 4, 32);
  OwnedRows h = in.activations(1, 128);
  const std::vector<float> before = h.data;
  OwnedRows kvv = in.activations(1, 160);
  OwnedRows gate(1, 4);
  const uint8_t image = 1;
  EngramGateArgs args;
  args.h = h.view();
  args.kvv = kvv.view();
  args.q_weight = &q.view;
  args.k_weight = &q.view;
  args.image = &image;
  args.gate = gate.view();
  reference_backend().engram_gate(args);
  EXPECT_TRUE(same_bits(h.data, before));
  EXPECT_EQ(gate.data[3], 0.0f);
}

}  // namespace
}  // namespace tidemill
