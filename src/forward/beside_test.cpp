// What may run beside other ops may run as late as it is joined, or an op at a time between theirs:
// nothing before reads what it gives or changes what it reads. That it may run at once, all other
// tests show.
#include "forward/test_recording.h"

namespace tidemill {
namespace {

// Prompts, decoding, verification and drafts; and a prompt of which only the tail runs through all
// layers.
Outcome outcome_of(Bench& bench) {
  Outcome outcome;
  decode(bench, 12, outcome);
  Sequence cut = bench.sequence();
  cut.decoder_floor = 70;
  const auto logits = bench.run(cut, random_tokens(100), {50, 48, 1});
  outcome.values.insert(outcome.values.end(), logits.begin(), logits.end());
  outcome.states.push_back(bench.pool().snapshot(cut));
  return outcome;
}

TEST(Beside, CannotBeSeenHoweverLate) {
  Bench plain(1, ReplayForm::kCompact, 600, 6,
              [](ThreadTeam& team) { return make_reference_backend(team); });
  static_assert(Backend::kLanes == 3);
  const Outcome expected = outcome_of(plain);
  EXPECT_TRUE(finite(expected.values));
  for (const bool in_turn : {false, true}) {
    for (const unsigned late : {1, 2, 4, 7}) {  // one lane behind the others, and all
      RecordingBench b(late, in_turn);
      const Outcome got = outcome_of(b.bench);
      const char* const how = in_turn ? ", in turn" : ", when joined";
      EXPECT_TRUE(same(got.values, expected.values)) << "lanes " << late << how;
      EXPECT_EQ(got.states == expected.states, true) << "lanes " << late << how;
      EXPECT_GE(b.recording->counts().late, 100) << "lanes " << late << how;
    }
  }
}

}  // namespace
}  // namespace tidemill
