#include "ops/draw/draw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/draw/test_draw_rows.h"
#include "ops/test_every_backend.h"

namespace tidemill {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<Drawn> run(Backend& backend, OwnedRows& logits, const std::vector<DrawRow>& rows) {
  std::vector<Drawn> drawn(rows.size(), Drawn{.count = -7});
  backend.draw({.logits = logits.view(), .rows = rows.data(), .drawn = drawn.data()});
  return drawn;
}

// -1: it is not known; -2: it is one of several.
std::vector<int32_t> tokens(const std::vector<Drawn>& drawn) {
  std::vector<int32_t> ids;
  for (const Drawn& d : drawn) ids.push_back(d.count == 1 ? d.id[0] : d.count == 0 ? -1 : -2);
  return ids;
}

TEST(DrawBackends, GreedyRowsGiveTheLowestOfTheLargest) {
  TestInputs in(1);
  for (const int64_t width : {1, 31, 320, 1024, 5000}) {
    OwnedRows logits(7, width);
    const auto row = [&](int64_t t) { return logits.view().f32(t); };
    for (int64_t t = 0; t < 7; ++t) {
      // Few values, so that many are equal.
      for (int64_t k = 0; k < width; ++k) row(t)[k] = static_cast<float>(in.below(5)) - 3;
    }
    for (int64_t k = 0; k < width; ++k) row(3)[k] = -kInfinity;
    for (int64_t k = 0; k < width; ++k) row(4)[k] = k == width / 2 ? -1e30f : -kInfinity;
    row(5)[width - 1] = kNaN;
    row(6)[width / 3] = kInfinity;
    std::vector<int32_t> expected;
    for (int64_t t = 0; t < 3; ++t) {
      expected.push_back(static_cast<int32_t>(std::max_element(row(t), row(t) + width) - row(t)));
    }
    expected.insert(expected.end(), {-1, static_cast<int32_t>(width / 2), -1, -1});
    const std::vector<DrawRow> greedy(7);
    for_each_backend([&](Backend& backend, const std::string& label) {
      EXPECT_EQ(tokens(run(backend, logits, greedy)), expected) << label << ", width " << width;
    });
    EXPECT_EQ(tokens(run(reference_backend(), logits, greedy)), expected) << width;
  }
}

TEST(DrawBackends, ZerosOfBothSignsAreEqual) {
  OwnedRows logits(1, 3);
  for (int k = 0; k < 3; ++k) logits.view().f32(0)[k] = k == 0 ? -1.0f : k == 1 ? -0.0f : 0.0f;
  for_each_backend([&](Backend& backend, const std::string& label) {
    EXPECT_EQ(tokens(run(backend, logits, {{}})), std::vector{1}) << label;
  });
}

TEST(DrawBackends, RowsWithoutATokenToDraw) {
  for (const float temperature : {0.0f, 0.8f}) {
    OwnedRows logits(4, 700);
    std::fill(logits.data.begin(), logits.data.end(), 1.0f);
    logits.view().f32(0)[699] = kNaN;
    logits.view().f32(1)[350] = kInfinity;
    std::fill_n(logits.view().f32(2), 700, -kInfinity);
    logits.view().f32(3)[0] = -kNaN;
    const std::vector<DrawRow> rows(4, {.temperature = temperature, .lowest = -104, .top_k = 3});
    for_each_backend([&](Backend& backend, const std::string& label) {
      EXPECT_EQ(tokens(run(backend, logits, rows)), std::vector(4, -1)) << label;
    });
  }
}

// Rows and parameters of all kinds. The drawn token is among those that a backend names: it is the
// only one but for a few draws, and seldom named by none.
TEST(DrawBackends, TheTokenOfTheReference) {
  TestInputs in(2);
  for (const int64_t width : {1, 3, 31, 320, 5000, 129280}) {
    const int64_t count = width > 5000 ? 24 : 48;
    OwnedRows logits(count, width);
    std::vector<DrawRow> rows;
    for (int64_t t = 0; t < count; ++t) {
      fill_draw_row(in, {logits.view().f32(t), static_cast<size_t>(width)});
      rows.push_back(random_draw_row(in));
    }
    const std::vector<Drawn> expected = run(reference_backend(), logits, rows);
    for_each_backend([&](Backend& backend, const std::string& label) {
      if (width > 5000 && calls_host_functions(backend)) return;  // it takes its time
      const std::vector<Drawn> drawn = run(backend, logits, rows);
      int64_t undecided = 0;
      for (size_t t = 0; t < rows.size(); ++t) {
        SCOPED_TRACE(testing::Message() << label << ", width " << width << ", row " << t);
        const Drawn& got = drawn[t];
        undecided += got.count != 1 && expected[t].count == 1;
        if (got.count == 0 || expected[t].count == 0) continue;
        const auto* last = got.id + got.count;
        const auto* found = std::find(got.id, last, expected[t].id[0]);
        ASSERT_NE(found, last) << got.id[0] << " for " << expected[t].id[0];
        EXPECT_EQ(got.scaled[found - got.id], expected[t].scaled[0]);
        EXPECT_TRUE(std::is_sorted(got.id, last));
      }
      EXPECT_LE(undecided, calls_host_functions(backend) ? 0 : 2) << label << ", width " << width;
    });
  }
}

// What racecheck has time for.
TEST(DrawBackends, SmallCalls) {
  TestInputs in(7);
  OwnedRows logits(6, 320);
  std::vector<DrawRow> rows;
  for (int64_t t = 0; t < logits.count; ++t) {
    fill_draw_row(in, {logits.view().f32(t), 320});
    rows.push_back(random_draw_row(in));
  }
  const std::vector<Drawn> expected = run(reference_backend(), logits, rows);
  for_each_backend([&](Backend& backend, const std::string& label) {
    const std::vector<Drawn> drawn = run(backend, logits, rows);
    for (size_t t = 0; t < rows.size(); ++t) {
      const Drawn& got = drawn[t];
      if (got.count == 0 || expected[t].count == 0) continue;
      const auto* last = got.id + got.count;
      EXPECT_NE(std::find(got.id, last, expected[t].id[0]), last) << label << ", row " << t;
    }
  });
}

// Rows of two tokens, whose scores differ by so little that a small error in one would make the
// other one win; and by more than a backend has to leave open, or not.
TEST(DrawBackends, ScoresThatAreClose) {
  TestInputs in(4);
  constexpr int64_t kCount = 3000;
  constexpr int64_t kWidth = 24;
  for (const double apart : {0x1p-13, 0x1p-20, 0.0}) {
    OwnedRows logits(kCount, kWidth);
    std::fill(logits.data.begin(), logits.data.end(), -kInfinity);
    std::vector<DrawRow> rows;
    for (int64_t t = 0; t < kCount; ++t) {
      const NoiseKey key{.seed = 3, .position = t};
      const auto first = static_cast<int32_t>(in.below(kWidth));
      const auto second = static_cast<int32_t>((first + 1 + in.below(kWidth - 1)) % kWidth);
      const auto finish = [&](int32_t id) { return -std::log1p(-noise_uniform(key, id)); };
      logits.view().f32(t)[first] = static_cast<float>(std::log(finish(first)) + apart);
      logits.view().f32(t)[second] = static_cast<float>(std::log(finish(second)));
      rows.push_back({.key = key, .temperature = 1.0f, .lowest = -104.0f});
    }
    const std::vector<int32_t> expected = tokens(run(reference_backend(), logits, rows));
    for_each_backend([&](Backend& backend, const std::string& label) {
      const std::vector<Drawn> drawn = run(backend, logits, rows);
      for (size_t t = 0; t < rows.size(); ++t) {
        SCOPED_TRACE(testing::Message() << label << ", row " << t << ", apart " << apart);
        ASSERT_GT(drawn[t].count, 0);
        const auto* last = drawn[t].id + drawn[t].count;
        ASSERT_NE(std::find(drawn[t].id, last, expected[t]), last);
        ASSERT_LE(drawn[t].count, apart == 0x1p-13 ? 1 : 2);
      }
    });
  }
}

TEST(DrawBackends, ARowIsDrawnAsAlone) {
  TestInputs in(3);
  OwnedRows logits(40, 2000);
  std::vector<DrawRow> rows;
  for (int64_t t = 0; t < 40; ++t) {
    fill_draw_row(in, {logits.view().f32(t), 2000});
    rows.push_back(random_draw_row(in));
  }
  for_each_backend([&](Backend& backend, const std::string& label) {
    const std::vector<int32_t> together = tokens(run(backend, logits, rows));
    for (int64_t t = 0; t < 40; t += 7) {
      const auto at = static_cast<size_t>(t);
      Drawn alone;
      backend.draw({.logits = logits.row(t), .rows = &rows[at], .drawn = &alone});
      EXPECT_EQ(tokens({alone})[0], together[at]) << label;
    }
  });
}

TEST(DrawBackends, NothingIsKnownOfRowsThatFindNoRoom) {
  HostCalls* cuda = cuda_host_calls();
  if (cuda == nullptr) GTEST_SKIP() << make_cuda_backend().error().message;
  OwnedRows logits(2, 600'000);
  EXPECT_EQ(tokens(run(*cuda, logits, {{}, {.temperature = 1, .lowest = -104}})),
            (std::vector{-1, -1}));
}

}  // namespace
}  // namespace tidemill
