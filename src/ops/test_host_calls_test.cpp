// The adaptor that op tests run a device through, and whether they had one.
#include "ops/test_host_calls.h"

#include <gtest/gtest-spi.h>

#include "ops/reference_backend.h"
#include "ops/test_every_backend.h"

namespace tidemill {
namespace {

// Writes one element behind its last row, or into its input.
class Careless : public ReferenceBackend {
 public:
  using ReferenceBackend::ReferenceBackend;
  void stream_mean(const StreamMeanArgs& a) override {
    ReferenceBackend::stream_mean(a);
    a.out.f32(a.out.count - 1)[a.out.width] = 1;
  }
  void repeat_row(const RepeatRowArgs& a) override {
    ReferenceBackend::repeat_row(a);
    a.row.f32(0)[0] += 1;
  }
};

TEST(HostCalls, SeeWhatIsWrittenOutsideTheResults) {
  if (DeviceMemory{}.separate) GTEST_SKIP() << "no guards between separate allocations";
  ThreadTeam team(1);
  HostCalls calls(std::make_unique<Careless>(team, Rounding{}));
  OwnedRows h(3, 64, 0);
  OwnedRows out(3, 16);
  EXPECT_NONFATAL_FAILURE(calls.stream_mean({.h = h.view(), .streams = 4, .out = out.view()}),
                          "wrote outside");
  EXPECT_NONFATAL_FAILURE(calls.repeat_row({.row = out.row(0), .out = h.view().slice(0, 16)}),
                          "wrote outside");
}

TEST(CudaBackend, RanTheOpTests) {
  if (cuda_host_calls() == nullptr) {
    GTEST_SKIP() << "the op tests did without the cuda backend: "
                 << make_cuda_backend().error().message;
  }
  OwnedRows row(1, 16);
  OwnedRows out(2, 16);
  const int64_t before = cuda_host_calls()->calls();
  for_each_backend([&](Backend& backend, const std::string&) {
    backend.repeat_row({.row = row.view(), .out = out.view()});
  });
  EXPECT_EQ(cuda_host_calls()->calls(), before + 1);
}

}  // namespace
}  // namespace tidemill
