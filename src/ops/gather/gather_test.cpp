// Rows of weight tables.
#include "ops/gather/gather.h"

#include <gtest/gtest.h>

#include "ops/reference.h"
#include "ops/test_every_backend.h"

namespace tidemill {
namespace {

TEST(GatherBackends, RowsSideBySideAndCopies) {
  TestInputs in(1);
  for (const WeightFormat format : {WeightFormat::kBf16, WeightFormat::kFp8Row}) {
    for (const int64_t cols : {10, 16, 32, 384}) {
      const OwnedMatrix table = in.matrix(format, 50, cols, {0, 100, 119, 255});
      struct Shape {
        int64_t tokens, per_row, copies;
      };
      for (const Shape& s : {Shape{1, 1, 4}, {3, 12, 1}, {20, 2, 3}, {2, 24, 4}}) {
        std::vector<int64_t> rows(static_cast<size_t>(s.tokens * s.per_row));
        for (int64_t& row : rows) row = in.below(50);
        const auto run = [&](Backend& b) {
          OwnedRows out(s.tokens, cols * s.per_row * s.copies);
          b.gather({&table.view, rows.data(), s.per_row, s.copies, out.view()});
          return out.data;
        };
        const std::vector<float> expected = run(reference_backend());
        std::vector<float> row(static_cast<size_t>(cols));
        reference::widen_row(table.view, rows.back(), row.data());
        const std::vector<float> tail(expected.end() - 16 - cols, expected.end() - 16);
        EXPECT_TRUE(same_bits(tail, row));  // the last copy's last row
        for_each_backend([&](Backend& backend, const std::string& label) {
          EXPECT_TRUE(same_bits(run(backend), expected)) << label << ", width " << cols;
        });
      }
    }
  }
}

}  // namespace
}  // namespace tidemill
