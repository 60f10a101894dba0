// What an engine chooses where the options leave it to it.
#include "engine/setup.h"

#include <gtest/gtest.h>

namespace tidemill {
namespace {

TEST(Setup, SizesAreChosenByTheBackend) {
  const struct {
    const char* backend;
    int64_t sequences, step;        // given
    int64_t sequences_is, step_is;  // chosen
  } cases[] = {
      {"cpu", 0, 0, 16, 512},        {"reference", 0, 0, 16, 512},
      {"cuda", 0, 0, 64, 8192},      {"cuda-eager", 0, 0, 64, 8192},
      {"cpu", 3, 0, 3, 512},         {"cpu", 1000, 0, 1000, 1032},
      {"cuda", 9000, 0, 9000, 9032}, {"cpu", 0, 40, 8, 40},  // a small step serves fewer
      {"cpu", 0, 20, 1, 20},         {"cuda", 0, 4096, 64, 4096},
      {"cpu", 5, 600, 5, 600},       {"no such backend", 0, 0, 16, 512},
  };
  for (const auto& c : cases) {
    Options options;
    options.backend = c.backend;
    options.sequences = c.sequences;
    options.max_step_tokens = c.step;
    const Options chosen = with_sizes(options);
    EXPECT_EQ(chosen.sequences, c.sequences_is) << c.backend << ' ' << c.sequences << ' ' << c.step;
    EXPECT_EQ(chosen.max_step_tokens, c.step_is)
        << c.backend << ' ' << c.sequences << ' ' << c.step;
  }
}

}  // namespace
}  // namespace tidemill
