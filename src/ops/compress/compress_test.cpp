// Ratio-2 compressor.
#include "ops/compress/compress.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/test_every_backend.h"

namespace tidemill {
namespace {

TEST(CompressPairs, IsASoftmaxPerChannel) {
  OwnedRows k(2, 2, 0);
  OwnedRows g(2, 2, 0);
  k.data = {1, 10, 3, 20};
  g.data = {0, 0, 0, std::log(3.0f)};
  const int64_t odd = 1;
  const int64_t even = 0;
  OwnedRows latent(1, 2, 0);
  CompressPairsArgs args;
  args.k = k.view();
  args.g = g.view();
  args.odd_row = &odd;
  args.even_row = &even;
  args.latent = latent.view();
  reference_backend().compress_pairs(args);
  EXPECT_EQ(latent.data, (std::vector<float>{2, 17.5f}));
}

TEST(CompressPairsBackends, AgreeOnFreshAndPendingRows) {
  TestInputs in(1);
  for (const int64_t width : {5, 32, 128, 512}) {
    OwnedRows k = in.activations(9, width);
    OwnedRows g = in.activations(9, width);
    const std::vector<float> pending = in.normals(4 * width, 1);
    const std::vector<int64_t> odd = {0, 2, 4, 5, 7};
    const std::vector<int64_t> even = {-1, 1, 3, -1, 6};
    const std::vector<int64_t> offset = {0, 0, 0, width * 8, 0};
    const auto run = [&](Backend& backend) {
      OwnedRows latent(5, width);
      CompressPairsArgs args;
      args.k = k.view();
      args.g = g.view();
      args.odd_row = odd.data();
      args.even_row = even.data();
      args.pending_base = reinterpret_cast<const std::byte*>(pending.data());
      args.pending_offset = offset.data();
      args.latent = latent.view();
      backend.compress_pairs(args);
      return latent.data;
    };
    const std::vector<float> expected = run(reference_backend());
    for_each_backend([&](Backend& backend, const std::string& label) {
      EXPECT_TRUE(same_bits(run(backend), expected)) << label << ", width " << width;
    });
  }
}

}  // namespace
}  // namespace tidemill
