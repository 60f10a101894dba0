// Every kernel set of this machine against the reference of its product order: the whole pass and a
// draft, whatever the chunks and the number of threads.
#include <optional>

#include "forward/test_bench.h"

namespace tidemill {
namespace {

struct Outcome {
  std::vector<float> logits;
  std::vector<float> draft;
  std::vector<std::byte> state;
};

template <typename Make>
Outcome outcome(int threads, const std::vector<int64_t>& chunks, Make&& make) {
  const std::vector<int32_t> tokens = random_tokens(200, 5);
  Bench bench(threads, ReplayForm::kCompact, 600, 2, make);
  Sequence sequence = bench.sequence();
  Outcome result;
  result.logits = bench.run(sequence, tokens, chunks);
  result.state = bench.pool().snapshot(sequence);
  result.draft = bench.draft(sequence, 17);
  return result;
}

TEST(Backends, AgreeOnTheWholePass) {
  std::optional<Outcome> expected[2];
  for (const CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAvx512Bf16, CpuIsa::kAmx}) {
    if (!cpu_supports(isa)) continue;
    std::string name;
    auto order = ProductOrder::kPairLanes;
    const Outcome got = outcome(3, {3, 70, 1, 33}, [&](ThreadTeam& team) {
      auto backend = std::move(*make_cpu_backend(team, isa));
      name = backend->name();
      order = backend->product_order();
      return backend;
    });
    auto& want = expected[static_cast<size_t>(order)];
    if (!want) {
      want = outcome(2, {200}, [&](ThreadTeam& team) {
        return make_reference_backend(team, Rounding{}, order);
      });
    }
    EXPECT_TRUE(same(got.logits, want->logits)) << name;
    EXPECT_TRUE(same(got.draft, want->draft)) << name;
    EXPECT_EQ(got.state, want->state) << name;
  }
}

}  // namespace
}  // namespace tidemill
