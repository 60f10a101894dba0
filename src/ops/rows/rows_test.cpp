// Cache rows: worked vectors (spec 12.2), round trips, then every backend against the reference.
#include "ops/rows/rows.h"

#include <gtest/gtest.h>

#include "ops/reference.h"
#include "ops/test_every_backend.h"

namespace tidemill {
namespace {

TEST(PackRow, WorkedVectors) {
  float x[32] = {8.25f, 4.125f, 3.4375f, -4.8125f};
  uint8_t row[32] = {};
  auto* bytes = reinterpret_cast<std::byte*>(row);
  float out[32];

  const RowFormat entry{RowKind::kQ4Entry, 32};
  reference::pack_row(entry, x, bytes);
  EXPECT_EQ(row[0], 0x57);  // codes 7, 5: the even column in the low nibble
  EXPECT_EQ(row[1], 0xE4);
  EXPECT_EQ(row[16], 0x3B);  // 1.375
  EXPECT_EQ(row[17], 0x01);  // a block of zeros: 2^-9
  reference::unpack_row(entry, bytes, out);
  EXPECT_EQ((std::vector<float>(out, out + 5)),
            (std::vector<float>{8.25f, 4.125f, 2.75f, -5.5f, 0}));

  const RowFormat index{RowKind::kQ4Index, 32};
  reference::pack_row(index, x, bytes);
  EXPECT_EQ(row[16], 128);  // 2
  reference::unpack_row(index, bytes, out);
  EXPECT_EQ((std::vector<float>(out, out + 5)), (std::vector<float>{8, 4, 3, -4, 0}));

  std::vector<float> y(32);
  y[0] = 1;
  y[1] = -2.5f;
  y[2] = round_bf16(0.3f);
  y[3] = 100;
  std::vector<std::byte> packed(33);
  reference::pack_row({RowKind::kQ8, 32}, y.data(), packed.data());
  EXPECT_EQ(static_cast<int>(packed[32]), 125);
  reference::unpack_row({RowKind::kQ8, 32}, packed.data(), out);
  EXPECT_EQ((std::vector<float>(out, out + 4)), (std::vector<float>{1, -2.5f, 0.3125f, 96}));
}

TEST(PackRow, PackingAgainKeepsTheValues) {
  TestInputs in(1);
  for (const RowKind kind : {RowKind::kQ8, RowKind::kQ4Entry}) {
    const RowFormat format{kind, 128};
    OwnedRows x = in.activations(20, 128);
    for (int64_t t = 0; t < 20; ++t) {
      std::vector<std::byte> once(static_cast<size_t>(format.bytes()));
      std::vector<std::byte> twice = once;
      std::vector<float> values(128);
      std::vector<float> again(128);
      reference::pack_row(format, x.view().f32(t), once.data());
      reference::unpack_row(format, once.data(), values.data());
      reference::pack_row(format, values.data(), twice.data());  // a scale may become smaller
      reference::unpack_row(format, twice.data(), again.data());
      EXPECT_EQ(again, values);
    }
  }
}

TEST(RowsBackends, StoreScatterRoundAndSelectAgree) {
  TestInputs in(2);
  for (const RowKind kind : {RowKind::kQ8, RowKind::kQ4Entry, RowKind::kQ4Index}) {
    for (const int64_t tokens : {1, 2, 7, 31}) {
      for (const int64_t width : {32, 64, 128, 512, 2048}) {
        const RowFormat format{kind, width};
        OwnedRows x = in.activations(tokens, width);
        std::vector<int64_t> offset;
        std::vector<int64_t> row;
        for (int64_t t = 0; t < tokens; ++t) {
          offset.push_back(t % 3 == 2 ? -1 : (tokens - 1 - t) * format.bytes());
          row.push_back(in.below(tokens));
        }
        const auto run = [&](Backend& backend) {
          const auto size = static_cast<size_t>(tokens * format.bytes() + 8);
          std::vector<std::byte> stored(size);
          std::vector<std::byte> scattered(size);
          backend.store_rows({x.view(), format, stored.data(), 8, offset.data()});
          backend.scatter_rows(
              {stored.data() + 8, tokens, format.bytes(), scattered.data(), 8, offset.data()});
          OwnedRows rounded = x;
          backend.round_rows({rounded.view(), kind, 32});
          OwnedRows chosen(tokens, width);
          backend.select_rows({rounded.view(), row.data(), chosen.view()});
          stored.insert(stored.end(), scattered.begin(), scattered.end());
          const auto* values = reinterpret_cast<const std::byte*>(chosen.data.data());
          stored.insert(stored.end(), values, values + chosen.data.size() * sizeof(float));
          const auto* more = reinterpret_cast<const std::byte*>(rounded.data.data());
          stored.insert(stored.end(), more, more + rounded.data.size() * sizeof(float));
          return stored;
        };
        const std::vector<std::byte> expected = run(reference_backend());
        for_each_backend([&](Backend& backend, const std::string& label) {
          EXPECT_EQ(run(backend), expected) << label << ", width " << width;
        });
      }
    }
  }
}

TEST(RowsBackends, SelectAndRepeatRows) {
  TestInputs in(4);
  for (const int64_t width : {4, 7, 48, 20480}) {
    OwnedRows rows = in.activations(3, width);
    const std::vector<int64_t> number = {2, 0, 2, 1};
    for_each_backend([&](Backend& backend, const std::string& label) {
      OwnedRows selected(4, width);
      OwnedRows expected = selected;
      backend.select_rows({.in = rows.view(), .row = number.data(), .out = selected.view()});
      for (int64_t t = 0; t < 4; ++t) {
        std::copy_n(rows.row(number[static_cast<size_t>(t)]).f32(0), width, expected.row(t).f32(0));
      }
      EXPECT_TRUE(same_bits(selected.data, expected.data)) << label << ", width " << width;
      OwnedRows repeated(4, width);
      backend.repeat_row({.row = rows.row(1), .out = repeated.view()});
      for (int64_t t = 0; t < 4; ++t) {
        std::copy_n(rows.row(1).f32(0), width, expected.row(t).f32(0));
      }
      EXPECT_TRUE(same_bits(repeated.data, expected.data)) << label << ", width " << width;
    });
  }
}

}  // namespace
}  // namespace tidemill
