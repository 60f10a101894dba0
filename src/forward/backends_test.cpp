// Every kernel set of this machine against the reference of its product order: the whole pass and a
// draft, whatever the chunks and the number of threads.
#include <optional>
#include <string>

#include "forward/test_bench.h"
#include "ops/reference_backend.h"

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
  if (testing_cuda_only()) GTEST_SKIP() << "asked for cuda only";
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

// The reference, but for the device's own exp, log1p, cos and sin.
class FunctionsOfCuda : public ReferenceBackend {
 public:
  explicit FunctionsOfCuda(ThreadTeam& team)
      : ReferenceBackend(team, Rounding{}), cuda_(cuda_backend_for_tests()) {}
  void route(const RouteArgs& a) override { cuda_.route(a); }
  void rope_table(const RopeTableArgs& a) override { cuda_.rope_table(a); }

 private:
  HostCalls cuda_;
};

// What a pass and a draft have computed on the way, in order.
struct Trace {
  struct Step {
    std::string what;
    std::vector<std::byte> bytes;
  };
  std::vector<Step> steps;
  Outcome outcome;

  template <typename Make>
  Trace(const std::vector<int64_t>& chunks, Make&& make) {
    const std::vector<int32_t> tokens = random_tokens(200, 5);
    Bench bench(2, ReplayForm::kCompact, 600, 2, make);
    bench.forward().observe([&](const Observation& o) {
      Step& step = steps.emplace_back();
      step.what = fmt::format("{} of layer {}", o.name, o.layer);
      const auto copy = [&](const void* from, int64_t bytes) {
        const auto* begin = static_cast<const std::byte*>(from);
        step.bytes.insert(step.bytes.end(), begin, begin + bytes);
      };
      if (o.ids != nullptr) copy(o.ids, o.rows->count * o.ids_width * 4);
      for (int64_t t = 0; o.values.data != nullptr && t < o.values.count; ++t) {
        copy(o.values.f32(t), o.values.width * 4);
      }
    });
    Sequence sequence = bench.sequence();
    outcome.logits = bench.run(sequence, tokens, chunks);
    outcome.state = bench.pool().snapshot(sequence);
    outcome.draft = bench.draft(sequence, 17);
  }
};

std::string first_difference(const Trace& got, const Trace& want) {
  for (size_t i = 0; i < std::min(got.steps.size(), want.steps.size()); ++i) {
    const auto& [what, bytes] = got.steps[i];
    const auto& expected = want.steps[i].bytes;
    if (bytes == expected) continue;
    int64_t different = 0;
    for (size_t k = 0; k < std::min(bytes.size(), expected.size()); k += 4) {
      different += std::memcmp(bytes.data() + k, expected.data() + k, 4) != 0;
    }
    const auto at = std::mismatch(bytes.begin(), bytes.end(), expected.begin()).first;
    return fmt::format("observation {} of {}, {}: value {} and {} more of {} differ", i,
                       got.steps.size(), what, (at - bytes.begin()) / 4, different - 1,
                       bytes.size() / 4);
  }
  return "no observation differs";
}

TEST(Backends, CudaAgreesOnTheWholePass) {
  if (cuda_backend_for_tests() == nullptr) GTEST_SKIP() << make_cuda_backend().error().message;
  const auto cuda = [](ThreadTeam&) { return cuda_backend_for_tests(CudaKernels::kPlain); };
  for (const std::vector<int64_t>& chunks : {std::vector<int64_t>{200}, {3, 70, 1, 33}}) {
    const Trace got(chunks, cuda);
    const Trace want(chunks, [](ThreadTeam& t) { return std::make_unique<FunctionsOfCuda>(t); });
    EXPECT_TRUE(finite(got.outcome.logits));
    EXPECT_TRUE(same(got.outcome.logits, want.outcome.logits)) << first_difference(got, want);
    EXPECT_TRUE(same(got.outcome.draft, want.outcome.draft)) << first_difference(got, want);
    EXPECT_EQ(got.outcome.state == want.outcome.state, true) << first_difference(got, want);
  }
}

// The functions' last bits move a value over a rounding boundary now and then, and the rows after
// it: as far as another program's order of sums does (tests/golden/micro_test.cpp).
TEST(Backends, CudaIsNearTheReference) {
  if (cuda_backend_for_tests() == nullptr) GTEST_SKIP() << make_cuda_backend().error().message;
  const Trace got({200}, [](ThreadTeam&) { return cuda_backend_for_tests(); });
  const Trace want({200}, [](ThreadTeam& team) { return make_reference_backend(team); });
  ASSERT_EQ(got.outcome.logits.size(), want.outcome.logits.size());
  double mean = 0;
  size_t equal = 0;
  for (size_t i = 0; i < got.outcome.logits.size(); ++i) {
    mean += std::fabs(static_cast<double>(got.outcome.logits[i]) - want.outcome.logits[i]);
    equal += got.outcome.logits[i] == want.outcome.logits[i];
  }
  mean /= static_cast<double>(got.outcome.logits.size());
  fmt::print("logits differ by {:.2g} in the mean, {} of {} are equal; first: {}\n", mean, equal,
             got.outcome.logits.size(), first_difference(got, want));
  EXPECT_LT(mean, 0.2);
}

}  // namespace
}  // namespace tidemill
