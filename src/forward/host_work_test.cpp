// What a step asks of the host besides enqueueing operations. On a device each transfer and each
// wait costs as much as several small kernels, and a wait in the middle leaves it without work.
#include <gtest/gtest.h>

#include "forward/test_bench.h"
#include "ops/reference_backend.h"

namespace tidemill {
namespace {

// The reference backend, which says that its memory is not the host's.
class CountingBackend : public ReferenceBackend {
 public:
  struct Counts {
    int staged = 0, copied = 0, finished = 0;
    bool operator==(const Counts&) const = default;
  };
  explicit CountingBackend(ThreadTeam& team) : ReferenceBackend(team, {}) {}

  bool host_memory() const override { return false; }
  void copy(void* to, const void* from, int64_t bytes) override {
    ++counts_.copied;
    ReferenceBackend::copy(to, from, bytes);
  }
  Status stage(std::span<const StagedArray> arrays) override {
    ++counts_.staged;
    return ReferenceBackend::stage(arrays);
  }
  Status finish() override {
    ++counts_.finished;
    return {};
  }
  // The last thing that a step computes.
  void linear(const LinearArgs& a) override {
    if (a.f32_output) at_last_product_ = counts_;
    ReferenceBackend::linear(a);
  }
  Counts take() { return std::exchange(counts_, {}); }
  Counts at_last_product() const { return at_last_product_; }

 private:
  Counts counts_;
  Counts at_last_product_;
};

std::ostream& operator<<(std::ostream& out, const CountingBackend::Counts& counts) {
  return out << counts.staged << " staged, " << counts.copied << " copied, " << counts.finished
             << " finished";
}

using Counts = CountingBackend::Counts;

const DrawRow kWays[] = {{},
                         {.temperature = 0.8f, .lowest = -104},
                         {.temperature = 1, .lowest = -104, .top_k = 9, .top_p = 0.9f}};
const std::span<const DrawRow> kDraws(kWays);
const std::span<const DrawRow> kLogits;

class HostWork : public testing::Test {
 protected:
  void prefill(int64_t sequences) {
    for (int64_t s = 0; s < sequences; ++s) {
      sequences_.push_back(bench_.sequence());
      bench_.run(sequences_.back(), random_tokens(41, static_cast<uint32_t>(s)), {64});
    }
    backend_->take();
  }
  Counts step(std::span<const DrawRow> draws) {
    const std::vector<int32_t> token{7};
    std::vector<StepItem> items;
    for (Sequence& s : sequences_) items.push_back({&s, token, Logits::kAll});
    for (Sequence& s : sequences_) EXPECT_TRUE(bench_.pool().reserve(s, s.length() + 1));
    EXPECT_TRUE(bench_.forward().prepare(items, draws));
    const auto output = bench_.forward().execute();
    EXPECT_TRUE(output);
    EXPECT_EQ(output->drawn.size(), draws.size());
    EXPECT_EQ(output->logits.data == nullptr, !draws.empty());
    Forward::commit(items);
    return backend_->take();
  }

  CountingBackend* backend_ = nullptr;
  Bench bench_{1, ReplayForm::kCompact, 64, 4, [this](ThreadTeam& team) {
                 auto backend = std::make_unique<CountingBackend>(team);
                 backend_ = backend.get();
                 return backend;
               }};
  std::vector<Sequence> sequences_;
};

TEST_F(HostWork, AStepSendsOnceWaitsForNothingAndFetchesItsLogits) {
  prefill(3);
  for (int i = 0; i < 4; ++i) {  // with and without an entry of ratio 2
    EXPECT_EQ(step(i % 3 == 0 ? kDraws : kLogits),
              (Counts{.staged = 1, .copied = 1, .finished = 1}));
    EXPECT_EQ(backend_->at_last_product(), (Counts{.staged = 1}));
  }
}

TEST_F(HostWork, LogitsThatWereNotFetchedCanStillBe) {
  prefill(3);
  step(kDraws);
  const auto some = bench_.forward().logits(1, 2);
  ASSERT_TRUE(some);
  EXPECT_EQ(backend_->take(), (Counts{.copied = 1, .finished = 1}));
  const std::vector<float> kept(some->f32(0), some->f32(0) + 2 * some->width);
  for (Sequence& s : sequences_) ASSERT_TRUE(bench_.pool().truncate(s, s.length() - 1));
  step(kLogits);
  const auto fetched = bench_.forward().logits(1, 2);
  ASSERT_TRUE(fetched);
  EXPECT_EQ(backend_->take(), Counts{});
  EXPECT_TRUE(std::equal(kept.begin(), kept.end(), fetched->f32(0)));
}

TEST_F(HostWork, ADraftPositionDoesTheSameWhateverTheNumberOfSequences) {
  prefill(3);
  std::vector<Forward::DraftItem> items;
  for (const Sequence& s : sequences_) items.push_back({&s, 5});
  ASSERT_TRUE(bench_.forward().draft(items));
  EXPECT_EQ(backend_->take(), (Counts{.staged = 1}));
  const std::vector<int32_t> previous{5, 5, 5};
  for (int64_t k = 0; k < 2; ++k) {
    ASSERT_TRUE(bench_.forward().draft_logits(k, previous, k == 0 ? kDraws : kLogits));
    EXPECT_EQ(backend_->take(), (Counts{.staged = 1, .copied = 2, .finished = 1}));
  }
}

}  // namespace
}  // namespace tidemill
