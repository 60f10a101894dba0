// Attention: the worked example, then every backend against the reference.
#include "ops/attend/attend.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "ops/attend/test_attend_step.h"
#include "ops/test_every_backend.h"

namespace tidemill {
namespace {

void expect_all_equal(AttendStep& step) {
  const std::vector<float> expected = step.run(reference_backend());
  for_each_backend_and_rows([&](Backend& backend, const std::string& label) {
    EXPECT_TRUE(same_bits(step.run(backend), expected))
        << label << ", " << step.args.heads << " heads of " << step.args.window_format.width;
  });
}

// One head, dim 2, keys (1,0) (0,1) (1,1), sink 0.5; spec 12.6. Keys of float32: every row kind
// that rounds is 32 wide.
TEST(Attend, WorkedExample) {
  AttendStep step = [] {
    TestInputs in(1);
    return AttendStep(in, {1, 32, 4, 0}, {0}, {1});
  }();
  const float keys[3][2] = {{1, 0}, {0, 1}, {1, 1}};
  float q[2] = {1, 2};
  float out[2];
  const float sink[1] = {0.5f};
  AttendArgs args = step.args;
  args.q = {q, 1, 2, 2};
  args.out = {out, 1, 2, 2};
  args.sink = {sink, 1};
  const int64_t end = 3;
  const int64_t zero = 0;
  args.window_begin = &zero;
  args.window_end = &end;
  args.window_format = {RowKind::kF32, 2};
  args.fresh = reinterpret_cast<const std::byte*>(keys);
  reference_backend().attend(args);
  EXPECT_EQ(out[0], 0.64453125f);
  EXPECT_EQ(out[1], 0.7734375f);
}

TEST(Attend, AQueryWithoutKeysGivesZero) {
  TestInputs in(2);
  AttendStep step(in, {4, 64, 8, 0}, {5}, {1});
  step.window_begin[0] = step.window_end[0];
  const std::vector<float> out = step.run(reference_backend());
  for (int64_t d = 0; d < 4 * 64; ++d) EXPECT_EQ(out[static_cast<size_t>(d)], 0.0f);
  expect_all_equal(step);
}

TEST(AttendBackends, Agree) {
  TestInputs in(3);
  const AttendShape shapes[] = {{8, 128, 128, 64}, {8, 128, 128, 0}, {4, 64, 32, 12},
                                {3, 32, 7, 5},     {1, 96, 65, 64},  {5, 64, 64, 1},
                                {64, 512, 20, 70}};
  for (const AttendShape& shape : shapes) {
    for (const std::vector<int64_t>& rows :
         std::vector<std::vector<int64_t>>{{1}, {2}, {5, 1, 3}}) {
      std::vector<int64_t> start;
      for (size_t s = 0; s < rows.size(); ++s) start.push_back(in.below(3) * 100 + in.below(3));
      AttendStep step(in, shape, start, rows);
      expect_all_equal(step);
    }
  }
}

TEST(AttendBackends, AgreeOnRowsThatNobodyPacked) {  // any bytes, NaN codes and scales among them
  TestInputs in(4);
  AttendStep step(in, {8, 64, 40, 24}, {70}, {3});
  for (auto* memory : {&step.fresh, &step.ring, &step.pages}) {
    for (std::byte& byte : *memory) {
      if (in.below(50) == 0) byte = static_cast<std::byte>(in.below(256));
    }
  }
  expect_all_equal(step);
}

TEST(AttendBackends, ARowDoesNotDependOnItsBatch) {
  TestInputs in(5);
  AttendStep step(in, {8, 128, 128, 64}, {200}, {7});
  for_each_backend_and_rows([&](Backend& backend, const std::string& label) {
    const std::vector<float> batch = step.run(backend);
    const AttendArgs all = step.args;
    for (int64_t t = 0; t < 7; ++t) {
      step.args.q = {all.q.f32(t), 1, all.q.width, all.q.stride};
      step.args.out = {all.out.f32(t), 1, all.out.width, all.out.stride};
      step.args.sequence = all.sequence + t;
      step.args.window_begin = all.window_begin + t;
      step.args.window_end = all.window_end + t;
      step.args.selected = all.selected + t * all.topk;
      const std::vector<float> one = step.run(backend);
      const size_t begin = static_cast<size_t>(t * all.out.stride);
      EXPECT_TRUE(std::equal(one.begin() + begin, one.begin() + begin + all.out.width,
                             batch.begin() + begin))
          << label;
    }
    step.args = all;
  });
}

// The same content on the first pages and on pages whose bytes lie past 2^31 and 2^32.
TEST(AttendBackends, PageAddressesHave64Bits) {
  TestInputs in(6);
  AttendStep step(in, {8, 128, 16, 64}, {100}, {2});
  const std::vector<float> expected = step.run(reference_backend());
  constexpr int64_t kStride = 1039680;  // a block of the released model
  const size_t size = size_t{9} << 30;
  void* pool = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(pool, MAP_FAILED);
  auto* base = static_cast<std::byte*>(pool);
  const PagedRows small = step.args.entries;
  for (const int64_t past : {int64_t{1} << 31, int64_t{1} << 32, int64_t{1} << 33}) {
    std::vector<int32_t> table = step.table;
    for (int32_t& block : table) {
      const int64_t far = past / kStride + 1 + block;
      std::memcpy(base + far * kStride + 32, small.base + block * small.block_bytes + 32,
                  static_cast<size_t>(small.rows_per_block * small.format.bytes()));
      block = static_cast<int32_t>(far);
    }
    step.args.entries.base = base;
    step.args.entries.block_bytes = kStride;
    step.args.entries.table = table.data();
    EXPECT_TRUE(same_bits(step.run(reference_backend()), expected));
    for_each_backend_and_rows([&](Backend& backend, const std::string& label) {
      EXPECT_TRUE(same_bits(step.run(backend), expected)) << label;
    });
  }
  munmap(pool, size);
}

}  // namespace
}  // namespace tidemill
