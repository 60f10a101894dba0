// The bundled model: what tests/vectors/mini holds of it (its README.md says who made which file),
// and what its kernel sets have in common.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "fixture.h"
#include "ops/reference_backend.h"
#include "ops/test_backend.h"
#include "recording.h"

namespace tidemill {
namespace {

const std::vector<std::string> kPrompts = {"p1", "p5", "p129", "p1100", "chat_recall"};

// Ids are equal; floats differ by no more than another machine's exp() could bring about.
void expect_equal(const NpzArray& got, const Npz& want, const std::string& name) {
  ASSERT_TRUE(want.has(name)) << name;
  ASSERT_EQ(got.shape, want.array(name).shape) << name;
  std::visit(
      [&]<typename T>(const std::vector<T>& values) {
        const std::vector<T> expected = want.values<T>(name);
        int64_t different = 0;
        for (size_t i = 0; i < values.size(); ++i) {
          different += !(std::fabs(static_cast<double>(values[i]) - expected[i]) <=
                         (std::is_same_v<T, float> ? 1e-4 : 0));
        }
        EXPECT_EQ(different, 0) << name << ": of " << values.size();
      },
      got.values);
}

// Where this fails on purpose, scripts/regenerate-vectors makes the vectors anew and checks them.
TEST(Mini, GivesWhatWasRecorded) {
  if (testing_cuda_only()) GTEST_SKIP() << "recorded with the functions of the host";
  for (const std::string& prompt : kPrompts) {
    SCOPED_TRACE(prompt);
    const Npz golden(vectors("mini/" + prompt + ".npz"));
    Machine machine(mini_model(), Machine::best());
    const NpzArrays recorded = record(machine, golden.values<int32_t>("ids"));
    EXPECT_GE(recorded.size(), 20u);
    for (const auto& [name, array] : recorded) expect_equal(array, golden, name);
  }
}

// Without roundings only the order of sums differs from the training model's.
TEST(Mini, WithoutRoundingsItIsTheTrainingModel) {
  const Npz golden(vectors("mini/no-rounding.npz"));
  const int64_t vocabulary = mini_model().config().vocab_size;
  for (const std::string name : {"p5", "p129", "p300"}) {
    Machine machine(mini_model(),
                    make_reference_backend(Machine::team(), *Rounding::parse("none")));
    Sequence sequence = machine.sequence();
    const auto d = compare(machine.run(sequence, golden.values<int32_t>(name + ".ids")),
                           golden.values<float>(name + ".logits"),
                           golden.values<int64_t>(name + ".pos"), vocabulary);
    EXPECT_LT(d.max, 1e-3) << name;
  }
}

TEST(Mini, WithoutRoundingsItsDrafterIsTheTrainingModels) {
  const Npz golden(vectors("mini/no-rounding.npz"));
  const auto ids = golden.values<int32_t>("p300.ids");
  const auto at = golden.values<int64_t>("p300.draft_at").at(0);
  const auto logits = golden.values<float>("p300.draft_logits");
  const auto confidence = golden.values<float>("p300.draft_conf");
  Machine machine(mini_model(), make_reference_backend(Machine::team(), *Rounding::parse("none")));
  Sequence sequence = machine.sequence();
  machine.run(sequence, std::span(ids).first(static_cast<size_t>(at)), Logits::kNone);
  const Forward::DraftItem item{&sequence, ids[static_cast<size_t>(at)]};
  ASSERT_TRUE(machine.forward().draft({&item, 1}));
  const auto width = static_cast<size_t>(mini_model().config().vocab_size);
  for (size_t k = 0; k < confidence.size(); ++k) {
    const int32_t previous = ids[static_cast<size_t>(at) + k];  // the text's, not the drafter's own
    const auto row = machine.forward().draft_logits(static_cast<int64_t>(k), {&previous, 1});
    ASSERT_TRUE(row);
    EXPECT_NEAR(row->confidence[0], confidence[k], 1e-3) << k;
    double largest = 0;
    for (size_t v = 0; v < width; ++v) {
      largest = std::max<double>(largest, std::fabs(row->logits.f32(0)[v] - logits[k * width + v]));
    }
    EXPECT_LT(largest, 1e-3) << k;
  }
}

// Every kernel set of this machine against the reference, end to end, bit for bit.
class Backends : public testing::TestWithParam<ProductOrder> {};

TEST_P(Backends, AgreeBitForBit) {
  const auto ids = Npz(vectors("mini/p129.npz")).values<int32_t>("ids");
  std::vector<std::pair<std::string, std::unique_ptr<Backend>>> backends;
  for (const auto& [name, isa] :
       {std::pair{"avx2", CpuIsa::kAvx2}, std::pair{"avx512", CpuIsa::kAvx512},
        std::pair{"avx512bf16", CpuIsa::kAvx512Bf16}, std::pair{"amx", CpuIsa::kAmx}}) {
    if (!cpu_supports(isa)) {
      std::printf("%s: not on this machine\n", name);
      continue;
    }
    auto backend = std::move(*make_cpu_backend(Machine::team(), isa));
    if (backend->product_order() == GetParam()) backends.emplace_back(name, std::move(backend));
  }
  if (backends.empty()) GTEST_SKIP() << "no kernels of this order";
  Machine reference(mini_model(), Machine::reference(GetParam()));
  Sequence sequence = reference.sequence();
  auto want = reference.run(sequence, ids);
  const auto state = reference.pool().snapshot(sequence);
  const auto draft = reference.draft(sequence, 17);
  for (auto& [name, backend] : backends) {
    Machine machine(mini_model(), std::move(backend));
    Sequence other = machine.sequence();
    const auto got = machine.run(other, ids);
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0) << name;
    EXPECT_EQ(machine.pool().snapshot(other), state) << name;
    const auto drafted = machine.draft(other, 17);
    EXPECT_EQ(drafted.ids, draft.ids) << name;
    EXPECT_EQ(drafted.confidence, draft.confidence) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Orders, Backends,
                         testing::Values(ProductOrder::kPairLanes, ProductOrder::kTiles));

}  // namespace
}  // namespace tidemill
