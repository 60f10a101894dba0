// RMS normalisation.
#include "ops/norm/norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/test_every_backend.h"

namespace tidemill {
namespace {

TEST(RmsNorm, PlainWeightOneRounding) {
  float x[2] = {3, 4};  // mean of squares 12.5
  const uint16_t weight[2] = {bf16_from_float(1), bf16_from_float(2)};
  const Rows view{x, 1, 2, 2};
  reference_backend().rms_norm({view, {weight, 2}, 1e-20f, view});
  EXPECT_EQ(x[0], round_bf16(3 / std::sqrt(12.5f)));
  EXPECT_EQ(x[1], round_bf16(8 / std::sqrt(12.5f)));
}

TEST(RmsNormBackends, Agree) {
  TestInputs in(1);
  for (const int64_t tokens : {1, 2, 3, 7, 31, 70}) {
    for (const int64_t width : {1, 24, 32, 64, 128, 192, 250, 384, 512, 1280, 5120, 12000}) {
      if (tokens > 7 && width > 1280) continue;
      OwnedRows x = in.activations(tokens, width);
      const std::vector<uint16_t> weight = in.bf16_normals(width, 1, 0.3f);
      const auto run = [&](Backend& backend) {
        OwnedRows y(tokens, width);
        OwnedRows in_place = x;
        backend.rms_norm({x.view(), {weight.data(), width}, 1e-20f, y.view()});
        backend.rms_norm({in_place.view(), {weight.data(), width}, 1e-20f, in_place.view()});
        y.data.insert(y.data.end(), in_place.data.begin(), in_place.data.end());
        return y.data;
      };
      const std::vector<float> expected = run(reference_backend());
      for_each_backend([&](Backend& backend, const std::string& label) {
        EXPECT_TRUE(same_bits(run(backend), expected)) << label << ", width " << width;
      });
    }
  }
}

}  // namespace
}  // namespace tidemill
