// Steps that come again may be run from a recording: the arguments of their ops are the same, and
// nobody sees a difference.
#include "forward/test_recording.h"

namespace tidemill {
namespace {

TEST(Repeat, EqualKeysAreEqualOpsAndNobodySeesThem) {
  const Outcome expected =
      decoded(48, [](ThreadTeam& team) { return make_reference_backend(team); });
  RecordingBench b;
  Outcome got;
  decode(b.bench, 48, got);
  EXPECT_TRUE(same(got.values, expected.values));
  EXPECT_EQ(got.states == expected.states, true);
  // Steps of 4 to 20 rows, and drafts of 4 and 8 sequences.
  const Recording::Counts& counts = b.recording->counts();
  EXPECT_LE(counts.recorded, 16);
  EXPECT_GE(counts.repeated, 48);
  EXPECT_GE(counts.compared, 16);

  // Another pass on the same backend has other memory.
  b.bench.make_forward({.max_tokens = 64});
  Outcome again;
  decode(b.bench, 8, again);
  EXPECT_TRUE(std::equal(again.values.begin(), again.values.end(), expected.values.begin()));
}

TEST(Repeat, AStepIsStagedOnceAndWaitedForAtItsEnd) {
  RecordingBench b;
  Sequence sequence = b.bench.sequence();
  b.bench.run(sequence, random_tokens(40), {40});
  const std::vector<int32_t> token{7};
  for (int i = 0; i < 4; ++i) {
    const Recording::Counts before = b.recording->counts();
    b.bench.run(sequence, token, {1});
    const Recording::Counts& after = b.recording->counts();
    EXPECT_EQ(after.stages, before.stages + 1);
    EXPECT_EQ(after.copies, before.copies + 1);  // the logits
    EXPECT_EQ(after.finishes, before.finishes + 1);

    const Forward::DraftItem item{&sequence, 3};
    const Recording::Counts begin = b.recording->counts();
    ASSERT_TRUE(b.bench.forward().draft({&item, 1}));
    EXPECT_EQ(b.recording->counts().stages, begin.stages + 1);
    EXPECT_EQ(b.recording->counts().copies, begin.copies);
    EXPECT_EQ(b.recording->counts().finishes, begin.finishes);
  }
}

TEST(Repeat, OtherStepsAreRunAsTheyAre) {
  RecordingBench b;
  const auto none = [&](const char* what) { EXPECT_EQ(b.recording->counts().recorded, 0) << what; };
  Sequence sequence = b.bench.sequence();
  const auto tokens = random_tokens(60);
  const StepItem prompt{&sequence, std::span(tokens).first(12), Logits::kLast};
  ASSERT_TRUE(b.bench.forward().run({&prompt, 1}));
  none("a prompt");
  b.bench.run(sequence, std::span(tokens).subspan(12), {48});
  none("many rows");
  Sequence cut = b.bench.sequence();
  cut.decoder_floor = 8;
  b.bench.run(cut, tokens, {50, 1});
  none("bounded replay");
  b.bench.forward().observe([](const Observation&) {});
  b.bench.run(sequence, std::span(tokens).first(1), {1});
  none("an observer");
  b.bench.forward().observe({});
  b.bench.run(sequence, std::span(tokens).first(1), {1});
  EXPECT_EQ(b.recording->counts().recorded, 1);
}

TEST(Repeat, CudaGraphsCannotBeSeen) {
  if (cuda_backend_for_tests() == nullptr) GTEST_SKIP() << make_cuda_backend().error().message;
  const auto cuda = [](CudaGraphs graphs) {
    return decoded(
        40, [&](ThreadTeam&) { return std::move(*make_cuda_backend(CudaKernels::kFast, graphs)); });
  };
  const Outcome on = cuda(CudaGraphs::kOn);
  const Outcome off = cuda(CudaGraphs::kOff);
  EXPECT_TRUE(same(on.values, off.values));
  EXPECT_EQ(on.states == off.states, true);
}

}  // namespace
}  // namespace tidemill
