// How good the bundled model is. The bounds lie beside its vectors (quality.json), as does that of
// what a replay costs (replay_test.cpp); every other test holds for any weights.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "fixture.h"
#include "npz.h"

namespace tidemill {
namespace {

// One window of the held-out text; the whole text is scored by `tidemill score`.
TEST(Quality, NegativeLogLikelihoodOfAWindow) {
  std::ifstream in(vectors("mini/heldout_20k.u16"), std::ios::binary);
  std::vector<uint16_t> window(2048);
  in.read(reinterpret_cast<char*>(window.data()), 2 * std::ssize(window));
  ASSERT_TRUE(in);
  const std::vector<int32_t> ids(window.begin(), window.end());
  const Config& config = mini_model().config();
  Machine machine(mini_model(), Machine::best());
  Sequence sequence = machine.sequence();
  const auto logits = machine.run(sequence, ids);
  double nll = 0;
  int64_t tokens = 0;
  for (size_t t = 0; t + 1 < ids.size(); ++t) {
    if (ids[t + 1] == config.bos_token_id) continue;  // never predicted
    const float* row = logits.data() + t * static_cast<size_t>(config.vocab_size);
    double largest = -1e30;
    for (int64_t v = 0; v < config.vocab_size; ++v) largest = std::max<double>(largest, row[v]);
    double total = 0;
    for (int64_t v = 0; v < config.vocab_size; ++v) total += std::exp(row[v] - largest);
    nll += largest + std::log(total) - row[ids[t + 1]];
    ++tokens;
  }
  nll /= static_cast<double>(tokens);
  fmt::print("{:.4f} nats a token\n", nll);
  EXPECT_LT(nll, quality_bound("nll_of_window_at_most"));
}

// Greedy drafts of the recorded continuations, as far as each goes before its end.
TEST(Quality, TokensPerDraftStep) {
  const Config& config = mini_model().config();
  const auto width = static_cast<size_t>(config.dspark_block_size);
  double accepted = 0;
  double steps = 0;
  for (const std::string name : {"p5", "p129", "p1100", "chat_recall"}) {
    const Npz golden(vectors("mini/" + name + ".npz"));
    const auto greedy = golden.values<int32_t>("greedy");
    const auto drafts = golden.values<int32_t>("drafts");
    for (size_t i = 0; i + width < greedy.size() && greedy[i] != config.eos_token_id; ++i) {
      size_t k = 0;
      while (k < width && drafts[i * width + k] == greedy[i + 1 + k]) ++k;
      accepted += static_cast<double>(k);
      ++steps;
    }
  }
  ASSERT_GT(steps, 0);
  fmt::print("{:.3f} tokens a step\n", 1 + accepted / steps);
  EXPECT_GE(1 + accepted / steps, quality_bound("tokens_per_draft_step_at_least"));
}

}  // namespace
}  // namespace tidemill
